"""Compile kernels for a GPU that is not there, and read what they need.

``python -m scalefold_kernels.compilation [op ...]`` prints registers, spills and shared memory of
every configuration that the ops list, for A100 and H100/H200, some for RTX 30; rc 1 if one does not
fit. It needs no GPU: Triton brings ptxas along. With ``--gluon`` only those in Gluon, which changes
with Triton's version.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from scalefold_kernels import WITHOUT_TRITON

if __name__ == "__main__" and find_spec("triton") is None:
    sys.exit(f"error: {WITHOUT_TRITON}")

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

from scalefold_kernels.machine_code import overwritten_operands

SHARED_BYTES = {"sm_80": 163 * 1024, "sm_86": 99 * 1024, "sm_90": 227 * 1024}
"""Shared memory that a block may have (CUDA C++ programming guide, compute capabilities)."""


Signature = str | tuple[str, ...]
"""Type of an argument, see `CompileCase`."""


@dataclass(frozen=True)
class CompileCase:
    """One configuration of a kernel, as it is launched.

    Attributes
    ----------
    name : str
        ``<kernel> <what is special>``; unique within the op.
    kernel : triton.JITFunction
    signature : mapping of str to str or tuple of str
        Type of each argument that is no constexpr: ``*bf16:16`` (pointer, aligned to 16 bytes),
        ``i32:16`` (divisible by 16), ``i32``, ``i64``, ``fp32``, ``tensordesc<...>``; a tuple of
        them for a tuple. Arguments that are 1 at the launch (unit strides) belong into
        ``constexprs``, or are ``=1`` in a tuple: Triton makes constants of them.
    constexprs : mapping
        Value of each constexpr; ``None`` for a pointer that is absent.
    num_warps, num_stages : int
    architectures : tuple of str
        For which GPUs this configuration is meant.
    maxnreg : int or None
        The most registers that a thread may have, where the launch limits them.
    """

    name: str
    kernel: Any
    signature: Mapping[str, Signature]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2
    architectures: tuple[str, ...] = ("sm_80", "sm_90")
    maxnreg: int | None = None


@dataclass(frozen=True)
class Resources:
    """What one thread (registers, spills) and one block (shared memory) of a kernel need.

    Attributes
    ----------
    idle_barriers : sequence of str
        Barriers in shared memory that are initialised and then never used.
    overwritten : sequence of str
        From `machine_code.overwritten_operands`.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    idle_barriers: Sequence[str] = ()
    overwritten: Sequence[str] = ()


_KINDS = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
}


def recorded(
    module: ModuleType, name: str, launch: Callable[[], Any], described: str, arch: str
) -> CompileCase:
    """The one launch of the kernel ``module.name`` that a function makes of tensors without memory.

    ``launch`` runs with a stand-in for the kernel that notes the arguments.
    """
    kernel, calls = getattr(module, name), []

    class Note:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *args, **kwargs: calls.append((args, kwargs))

    with patch.object(module, name, Note()):
        launch()
    ((args, constexprs),) = calls
    names = ("num_warps", "num_stages", "maxnreg")
    options = {k: constexprs.pop(k) for k in names if k in constexprs}
    signature: dict[str, Signature] = {}
    for argument, value in zip(kernel.arg_names, args, strict=False):
        if value is None or (isinstance(value, int) and value == 1):
            constexprs[argument] = value
        else:
            signature[argument] = _signature(value)
    return CompileCase(described, kernel, signature, constexprs, architectures=(arch,), **options)


def _signature(value: Any) -> Signature:
    if isinstance(value, tuple):
        return tuple(str(_signature(x)) for x in value)
    if isinstance(value, torch.Tensor):
        return f"*{_KINDS[value.dtype]}:16"
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        if value == 1:
            return "=1"
        return "i32:16" if value % 16 == 0 else "i32"
    return f"tensordesc<{_KINDS[value.base.dtype]}{value.block_shape},{value.layout!r}>"


def compile_offline(case: CompileCase, arch: str) -> Resources:
    """Compile for ``arch`` (``sm_80``, ``sm_90``) without a GPU; Triton's cache is used.

    Spills are the thread's local memory in the compiled object, the number that Triton itself
    reports as ``n_spills`` once a GPU has loaded it.
    """
    types: dict[str, Any] = {}
    constants: dict[Any, Any] = dict(case.constexprs)
    aligned = {}
    for name, kinds in case.signature.items():
        types[name] = _type(kinds)
        place = case.kernel.arg_names.index(name)
        for i, kind in enumerate(kinds if isinstance(kinds, tuple) else [kinds]):
            path = (place, i) if isinstance(kinds, tuple) else (place,)
            if kind.endswith(":16"):
                aligned[path] = [["tt.divisibility", 16]]
            elif kind == "=1":
                constants[path] = 1
    signature = {name: types.get(name, "constexpr") for name in case.kernel.arg_names}
    lacking = set(case.kernel.arg_names) - set(types) - set(case.constexprs)
    unknown = (set(types) | set(case.constexprs)) - set(case.kernel.arg_names)
    if lacking or unknown:
        raise ValueError(
            f"{case.name}: arguments of the kernel without a type or value: {sorted(lacking)}; "
            f"given, but no arguments: {sorted(unknown)}"
        )
    source = GluonASTSource if isinstance(case.kernel, GluonJITFunction) else ASTSource
    compiled = triton.compile(
        source(case.kernel, signature, constants, aligned),
        target=GPUTarget("cuda", int(arch.removeprefix("sm_")), 32),
        options={
            "num_warps": case.num_warps,
            "num_stages": case.num_stages,
            "maxnreg": case.maxnreg,
        },
    )
    registers, local_bytes = _usage(_dump(compiled.asm["cubin"], "--dump-resource-usage"))
    return Resources(
        registers,
        local_bytes,
        compiled.metadata.shared,
        list(_idle_barriers(compiled.asm["ttgir"].splitlines())),
        overwritten_operands(_dump(compiled.asm["cubin"], "--dump-sass")),
    )


def _type(kind: Signature) -> Any:
    if isinstance(kind, tuple):
        return tuple(map(_type, kind))
    return "constexpr" if kind == "=1" else kind.split(":")[0]


def _dump(cubin: bytes, what: str) -> str:
    """What cuobjdump tells of a compiled object."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, what, file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _usage(report: str) -> tuple[int, int]:
    """Registers and local memory (bytes) of a thread, as the object itself records them."""
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", report)
    if found is None:
        raise RuntimeError(f"cuobjdump reports no resource usage:\n{report}")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def _idle_barriers(lines: list[str]) -> Iterator[str]:
    """Names of the barriers that only the making of them mentions, in Triton's own code."""
    for line in lines:
        made = re.match(r"\s*(%\S+) = ttg\.local_alloc : \(\) -> !ttg\.memdesc<\w+xi64,", line)
        if made and all(map(_initialises, _closure(lines, made[1]))):
            yield made[1].removeprefix("%")


def _closure(lines: list[str], value: str) -> Iterator[str]:
    """Lines that use a value or an element of it; up to where another value has its name."""
    defines, mentions = (rf"\s*{re.escape(value)} = ", rf"{re.escape(value)}(?![\w$.-])")
    start = next(n for n, line in enumerate(lines, 1) if re.match(defines, line))
    for n, line in enumerate(lines[start:], start):
        if re.match(defines, line):
            return
        if element := re.match(rf"\s*(%\S+) = ttg\.memdesc_index {re.escape(value)}\[", line):
            yield from _closure(lines[n:], element[1])
        elif re.search(mentions, line):
            yield line


def _initialises(line: str) -> bool:
    return "ttng.init_barrier" in line


def all_cases(ops: Iterable[str] = ()) -> dict[str, tuple[str, int]]:
    """``<op>: <case name>`` of every listed configuration -> (op, place in its list)."""
    import scalefold_kernels

    names = {m.name for m in pkgutil.iter_modules(scalefold_kernels.__path__) if m.ispkg}
    folders = {name for name in names if find_spec(f"scalefold_kernels.{name}.cases")}
    unknown = set(ops) - folders
    if unknown:
        raise ValueError(f"no op {sorted(unknown)}; there are {sorted(folders)}")
    found: dict[str, tuple[str, int]] = {}
    for op in sorted(set(ops) or folders):
        for place, case in enumerate(_cases(op)()):
            key = f"{op}: {case.name}"
            if key in found:
                raise ValueError(f"two configurations are called {key!r}")
            found[key] = op, place
    return found


def _cases(op: str) -> Callable[[], list[CompileCase]]:
    found: Callable[[], list[CompileCase]]
    found = import_module(f"scalefold_kernels.{op}.cases").compile_cases
    return found


def compile_all(
    ops: Iterable[str] = (), processes: int = 2, *, gluon_alone: bool = False
) -> dict[str, dict[str, Resources | str]]:
    """``{case: {arch: resources}}`` of every configuration; an error's text where it fails."""
    jobs = [
        (key, op, place, arch)
        for key, (op, place) in all_cases(ops).items()
        for case in [_cases(op)()[place]]
        if isinstance(case.kernel, GluonJITFunction) or not gluon_alone
        for arch in case.architectures
    ]
    results: dict[str, dict[str, Resources | str]] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for (key, _, _, arch), result in zip(jobs, pool.map(_job, jobs), strict=True):
            results.setdefault(key, {})[arch] = result
    return results


def _job(job: tuple[str, str, int, str]) -> Resources | str:
    _, op, place, arch = job
    try:
        return compile_offline(_cases(op)()[place], arch)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def complaint(result: Resources | str, arch: str) -> str | None:
    """Why this kernel may not be used on ``arch``, or None."""
    if isinstance(result, str):
        return result
    if result.spilled_bytes:
        return f"spills {result.spilled_bytes} bytes a thread: smaller tile or more warps"
    if result.idle_barriers:
        return (
            f"barriers {', '.join(result.idle_barriers)} are made and never used: their memory is "
            "given to something else while they live; make them where they are waited for"
        )
    if result.overwritten:
        return (
            f"left operands of products that a loop takes from before it: {result.overwritten}; "
            "unroll the loop, or take them from shared memory"
        )
    if result.shared_bytes > SHARED_BYTES[arch]:
        return f"needs {result.shared_bytes} bytes shared memory, {SHARED_BYTES[arch]} are there"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m scalefold_kernels.compilation")
    parser.add_argument("ops", nargs="*", metavar="OP", help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--gluon", action="store_true", help="only kernels for Hopper GPUs")
    options = parser.parse_args(arguments)
    results = compile_all(options.ops, options.processes, gluon_alone=options.gluon)
    failures = 0
    for key, by_arch in results.items():
        for arch, result in by_arch.items():
            wrong = complaint(result, arch)
            failures += wrong is not None
            print(f"{arch}  {key:60}  {wrong or _line(result)}", flush=True)
    if options.json:
        plain = {
            key: {a: r if isinstance(r, str) else asdict(r) for a, r in by_arch.items()}
            for key, by_arch in results.items()
        }
        options.json.write_text(json.dumps(plain))
    return int(failures > 0)


def _line(result: Resources | str) -> str:
    assert isinstance(result, Resources)
    return f"{result.registers:4} registers, {result.shared_bytes:6} bytes shared memory"


if __name__ == "__main__":
    sys.exit(main())
