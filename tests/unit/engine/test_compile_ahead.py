"""Kernels are compiled by other processes, and are not launched meanwhile."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scalefold.engine.compile_ahead import compiling_processes, launches_only_compile

KERNEL = """
import os
from pathlib import Path
import triton
import triton.language as tl


class Launcher:
    def __init__(self, src, metadata):
        Path(os.environ["TRITON_CACHE_DIR"], f"{metadata.hash}.launcher").touch()


@triton.jit
def double_kernel(x_ptr, y_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at))


@triton.jit
def wrong_kernel(x_ptr):
    tl.store(x_ptr, undefined)
"""

# Triton compiles for a Hopper GPU without having one; a launch would end with an error.
SETUP = """
import sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from kernel import Launcher, double_kernel, wrong_kernel
from scalefold.engine.compile_ahead import launches_only_compile


class Driver:
    launcher_cls = Launcher
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)
    def get_current_device(self):
        return 0
    def get_current_stream(self, device):
        return 0


triton.runtime.driver.set_active(Driver())
found = []
triton.knobs.compilation.listener = lambda *, cache_hit, **_: found.append(cache_hit)
x, y = torch.ones(64), torch.zeros(64)
"""

PROGRAM = f"""{SETUP}
with launches_only_compile(processes=2) as asked:
    for size in (16, 32, 16, 64):
        double_kernel[1,](x, y, size)
    wrong_kernel[1,](x)
    assert "stay" not in sys.argv or input()
assert len(asked) == 4 and not found
for size in (16, 32, 64):
    assert double_kernel.warmup(x, y, size, grid=(1,)) is not None
assert found == [True] * 3, found
try:
    wrong_kernel.warmup(x, grid=(1,))
except triton.CompilationError as error:
    assert "undefined" in str(error)
else:
    raise AssertionError("the error of a kernel is lost")

double_kernel.device_caches.clear()
with launches_only_compile(processes=2) as asked:
    assert double_kernel.warmup(x, y, 16, grid=(1,)) is not None
assert not asked and found == [True] * 4, found
"""

SHIPPED = f"""{SETUP}
with launches_only_compile(processes=2) as asked:
    for size in (16, 32, 64):
        assert double_kernel.warmup(x, y, size, grid=(1,)) is not None
assert not asked and found == [True] * 3, found
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command, outside of Triton's interpreter and with an empty cache."""
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]


def test_kernels_are_found_compiled_after_the_block(program: list[str]) -> None:
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_launchers_are_compiled_too(program: list[str]) -> None:
    subprocess.run(program, check=True)
    assert len(list(Path(os.environ["TRITON_CACHE_DIR"]).glob("*.launcher"))) == 3


def test_a_cache_made_without_a_gpu_serves_a_run_that_cannot_write_it(
    program: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the requests of another run; as an image brings it."""
    subprocess.run(program, check=True)
    recorded = sorted((tmp_path / "cache/scalefold").iterdir())
    requests = b"".join(mark.read_bytes() for mark in recorded)
    assert b"{triton}" in requests
    shipped = tmp_path / "shipped"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(shipped))
    target = '{"backend": "cuda", "arch": 90, "warp_size": 32}'
    compile_ahead = [sys.executable, "-m", "scalefold.engine.compile_ahead"]
    command = [*compile_ahead, target, "2", "kernel:Launcher"]
    subprocess.run(command, input=requests, check=True)
    assert [p.name for p in sorted((shipped / "scalefold").iterdir())] == [p.name for p in recorded]
    shutil.rmtree(tmp_path / "cache")

    before = sorted(shipped.rglob("*"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("TRITON_OVERRIDE_DIR", str(shipped))
    manager = "scalefold.engine.shipped_kernels:CacheBesideShipped"
    monkeypatch.setenv("TRITON_CACHE_MANAGER", manager)
    (tmp_path / "program.py").write_text(SHIPPED)
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "own").rglob("*.cubin"))
    assert sorted(shipped.rglob("*")) == before


def test_the_cache_stays_where_it_is_when_torch_compile_names_another(
    program: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Inductor does at its first kernel, if the variable is not set."""
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    path, other = tmp_path / "program.py", tmp_path / "other"
    launch = "        double_kernel[1,](x, y, size)\n"
    later = f'        os.environ.setdefault("TRITON_CACHE_DIR", {str(other)!r})\n'
    text = path.read_text()
    assert text.count(launch) == 1
    path.write_text("import os\n" + text.replace(launch, launch + later))
    test_kernels_are_found_compiled_after_the_block(program)
    assert not other.exists()


def test_the_processes_end_when_their_parent_is_killed(program: list[str]) -> None:
    reader, writer = os.pipe()  # its end is seen when nobody has the other side any longer
    parent = subprocess.Popen(
        [*program, "stay"], stdin=subprocess.PIPE, pass_fds=[writer], stdout=writer
    )
    os.close(writer)
    while not list(Path(os.environ["TRITON_CACHE_DIR"]).glob("*/double_kernel.cubin")):
        assert parent.poll() is None
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert os.read(reader, 1) == b""


def test_ranks_of_a_node_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert compiling_processes() == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert compiling_processes() == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_kernel_that_was_compiled_ahead_runs() -> None:
    from scalefold_kernels import layer_norm

    x = torch.randn(3, 96, device="cuda")
    weight, bias = torch.randn(2, 96, device="cuda")
    with launches_only_compile(processes=2):
        layer_norm(x, weight, bias)
    reference = torch.nn.functional.layer_norm(x, (96,), weight, bias)
    torch.testing.assert_close(layer_norm(x, weight, bias), reference)
