"""Compile a kernel without a GPU: Triton brings ptxas and cuobjdump along."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import triton
from tests.kernels.offline.case import CompileCase, Signature
from tests.kernels.offline.machine_code import overwritten_operands
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

SHARED_BYTES = {
    "sm_80": 163 * 1024,
    "sm_86": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "gfx942": 64 * 1024,
}
"""Shared memory that a block may have (CUDA C++ programming guide, compute capabilities; MI300)."""


@dataclass(frozen=True)
class Resources:
    """What one thread (registers, spills) and one block (shared memory) of a kernel need.

    Attributes
    ----------
    spilled_bytes : int
        Beyond those that are known of the case.
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


def compile_offline(case: CompileCase, arch: str) -> Resources:
    """Compile for ``arch`` (``sm_90``, ``gfx942``) without a GPU; Triton's cache is used.

    Of AMD's GPUs the shared memory alone is told.
    Spills are the thread's local memory in the compiled object, the number that Triton itself
    reports as ``n_spills`` once a GPU has loaded it.
    """
    types: dict[str, Any] = {}
    constants: dict[Any, Any] = dict(case.constexprs)
    aligned = {}
    for name, given in case.signature.items():
        types[name] = _type(given)
        place = case.kernel.arg_names.index(name)
        for i, one in enumerate(given if isinstance(given, tuple) else [given]):
            path = (place, i) if isinstance(given, tuple) else (place,)
            if one.endswith(":16"):
                aligned[path] = [["tt.divisibility", 16]]
            elif one == "=1":
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
        target=_target(arch),
        options={
            "num_warps": case.num_warps,
            "num_stages": case.num_stages,
            **({} if case.maxnreg is None else {"maxnreg": case.maxnreg}),
        },
    )
    if "cubin" not in compiled.asm:
        return Resources(0, 0, compiled.metadata.shared)
    registers, local_bytes = _usage(_dump(compiled.asm["cubin"], "--dump-resource-usage"))
    # Of these alone a left operand may be in registers; the listing takes as long as ptxas.
    has_products = "wgmma.mma_async" in compiled.asm["ptx"]
    return Resources(
        registers,
        max(0, local_bytes - case.spilled_bytes),
        compiled.metadata.shared,
        list(_idle_barriers(compiled.asm["ttgir"].splitlines())),
        overwritten_operands(_dump(compiled.asm["cubin"], "--dump-sass")) if has_products else (),
    )


def _target(arch: str) -> GPUTarget:
    if arch.startswith("gfx"):
        return GPUTarget("hip", arch, 64)
    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def _type(given: Signature) -> Any:
    if isinstance(given, tuple):
        return tuple(map(_type, given))
    return "constexpr" if given == "=1" else given.split(":")[0]


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


def complaint(result: Resources | str, arch: str) -> str | None:
    """Why this kernel may not be used on ``arch``, or None."""
    if isinstance(result, str):
        return result
    if result.spilled_bytes:
        return f"spills {result.spilled_bytes} bytes a thread: smaller blocks or more warps"
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
