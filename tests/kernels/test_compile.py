"""Configurations that the ops list compile for A100 and H100/H200, without complaint.

Of each kernel the first one; all of them with the tests marked `exhaustive`.
"""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, walk_packages

import pytest
import triton
from tests.kernels.offline.compilation import Resources, complaint
from tests.kernels.offline.configurations import OPS, all_cases, cases_of, every_job
from tests.kernels.offline.machine_code import SHORTEST_LOOP, overwritten_operands
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime import KernelInterface

import scalefold_kernels
from scalefold_kernels import ops
from scalefold_kernels.tiles import _all_tables

ROOT = Path(__file__).parents[2]

FIRST = {case for case, *_ in every_job(first_alone=True)}
CASES = [
    case if case in FIRST else pytest.param(case, marks=pytest.mark.exhaustive)
    for case in all_cases()
]

TUNED_VERSION = "3.6."
"""Of the Triton that portable kernels were tuned with, which the CPU build is tested with.
Another compiler gives some of them registers otherwise."""


@pytest.fixture(scope="session")
def compiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Resources | str]]:
    """All results that are asked for, from one process outside the interpreter."""
    out: Path = tmp_path_factory.mktemp("compiled") / "resources.json"
    every = any(item.get_closest_marker("exhaustive") for item in request.session.items)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.offline", "--json", out]
        + ([] if every else ["--first"]),
        env=environment,
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert out.is_file(), done.stderr
    return {
        key: {a: r if isinstance(r, str) else Resources(**r) for a, r in by_arch.items()}
        for key, by_arch in json.loads(out.read_text()).items()
    }


@pytest.mark.parametrize("case", CASES)
def test_compiles_without_complaint(case: str, compiled: dict) -> None:
    wrong = {arch: complaint(result, arch) for arch, result in compiled[case].items()}
    assert wrong
    found = [why for why in wrong.values() if why]
    version = triton.__version__
    if found and is_portable(case) and not version.startswith(TUNED_VERSION):
        assert all(why.startswith("spills ") for why in found), wrong
        pytest.skip(f"with Triton {version}; tuned with {TUNED_VERSION}x: {wrong}")
    assert not found, wrong


def is_portable(case: str) -> bool:
    """Whether it is of a kernel for any GPU; those for Hopper are held to every version."""
    op, place = all_cases()[case]
    return not isinstance(cases_of(op)[place].kernel, GluonJITFunction)


@pytest.mark.parametrize("arch", ["sm_100", "gfx942"])
def test_portable_kernels_compile_for_other_gpus(arch: str) -> None:
    """Blackwell (B200) and AMD (MI300), for which nothing is tuned: a spill is no failure."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.offline", "--arch", arch, "--spills"],
        env=environment,
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_they_are_listed_by_folder() -> None:
    assert {*OPS} == {module.name for module in iter_modules(ops.__path__)} | {"sums"}


def test_every_kernel_is_listed() -> None:
    listed = {case.kernel.fn for op in OPS for case in cases_of(op)}
    launched = {
        value.fn: f"{module.name}.{name}"
        for module in walk_packages(scalefold_kernels.__path__, f"{scalefold_kernels.__name__}.")
        for name, value in vars(import_module(module.name)).items()
        # Kernels are named so; other functions of Triton's are called by them.
        if isinstance(value, KernelInterface) and name.endswith("_kernel")
    }
    assert launched
    assert not {name for function, name in launched.items() if function not in listed}
    # A table has the name of its kernel.
    assert {f"{table}_kernel" for table in _all_tables()} <= {f.__name__ for f in launched}


def test_arguments_are_named_by_what_they_are() -> None:
    types = {
        (case.kernel.fn.__name__, name): type_name
        for op in OPS
        for case in cases_of(op)
        for name, type_name in case.signature.items()
        if isinstance(type_name, str)
    }
    for starts, ends in ("*", "_ptr"), ("tensordesc", "_desc"):
        found = {key for key, type_name in types.items() if type_name.startswith(starts)}
        assert found == {key for key in types if key[1].endswith(ends)}
    assert not [key for key in types if key[1][0].isupper()]  # as constants are


SPILLING = """
import triton
import triton.language as tl
from tests.kernels.offline.case import CompileCase
from tests.kernels.offline.compilation import compile_offline, complaint


@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + columns)  # one warp holds all of it until the sum is known
    tl.store(x_ptr + columns, x * tl.sum(x))


for block in (512, 16384):
    case = CompileCase("hold", kernel, {"x_ptr": "*fp32:16"}, {"BLOCK": block}, num_warps=1)
    print(complaint(compile_offline(case, "sm_90"), "sm_90"))
"""


IDLING = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from tests.kernels.offline.case import CompileCase
from tests.kernels.offline.compilation import compile_offline, complaint


@gluon.jit
def kernel(x_ptr, WAITS: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(2):
        mbarrier.init(barriers.index(n), 1)
    if WAITS:
        mbarrier.arrive(barriers.index(1))
        mbarrier.wait(barriers.index(1), 0)
    gl.store(x_ptr, 1.0)


for waits in (True, False):
    case = CompileCase("wait", kernel, {"x_ptr": "*fp32:16"}, {"WAITS": waits})
    print(complaint(compile_offline(case, "sm_90"), "sm_90"))
"""


def complaints(program: str, folder: Path) -> list[str]:
    """What a program prints, run outside the interpreter."""
    path = folder / "program.py"
    path.write_text(program)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), environment.get("PYTHONPATH")])
    )
    done = subprocess.run(
        [sys.executable, path], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def test_a_kernel_that_spills_is_refused(tmp_path: Path) -> None:
    small, large = complaints(SPILLING, tmp_path)
    assert small == "None"
    assert large.startswith("spills ")


def test_a_barrier_that_nobody_waits_for_is_refused(tmp_path: Path) -> None:
    waits, idles = complaints(IDLING, tmp_path)
    assert waits == "None"
    assert idles.startswith("barriers barriers are made and never used")


def listing(*loop: str) -> str:
    """Machine code: a loop of these instructions."""
    code = [*loop, *["NOP"] * SHORTEST_LOOP, "@P0 BRA 0x1000"]
    return "\n".join(f"        /*{0x1000 + 16 * i:04x}*/   {x} ;" for i, x in enumerate(code))


PRODUCT = "HGMMA.64x64x16.F32.BF16 R24, R100, gdesc[UR8], R24, gsb0"


def test_a_loop_that_overwrites_a_left_operand_is_refused() -> None:
    assert overwritten_operands(listing("FADD R5, R100, R1", PRODUCT, "STS [R100], R101")) == []
    for before in ["LDSM.16.M88.4 R100, [R5]"], ["CS2R R100, SRZ", "CS2R R102, SRZ"]:
        assert overwritten_operands(listing(*before, PRODUCT, "MOV R103, R1")) == []
    for wrong in ("MUFU.EX2 R103, R88", "LDS.128 R100, [R5]", PRODUCT.replace("R24", "R80", 1)):
        (found,) = {x.split(": ")[0] for x in overwritten_operands(listing(PRODUCT, wrong))}
        assert found == "0x1000"
    assert "left operands" in str(complaint(Resources(64, 0, 0, (), ["0x10: R1"]), "sm_90"))


def test_what_does_not_fit_is_refused() -> None:
    assert complaint(Resources(64, 0, 164 * 1024), "sm_90") is None
    assert "166912" in str(complaint(Resources(64, 0, 164 * 1024), "sm_80"))
    assert complaint("CompilationError: no", "sm_90") == "CompilationError: no"
