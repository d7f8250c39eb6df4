"""Kernels in CUDA C++: compilation, its cache, arguments of a launch, and doing without."""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import triton

from scalefold_kernels.cuda import bindings, compiler, launch

cuda = pytest.importorskip("cuda", reason="cuda-bindings are not installed")
nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings are not installed")
from cuda.pathfinder import DynamicLibNotFoundError  # noqa: E402

SCALE = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= FACTOR; }'


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "scale.cu"
    path.write_text(SCALE)
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path / "cache")
        yield path


def cached(source: Path) -> list[Path]:
    return sorted((source.parent / "cache").rglob("*"))


def files(source: Path) -> list[str]:
    return [path.name for path in cached(source) if path.is_file()]


def test_a_file_is_compiled_once(source: Path) -> None:
    first = compiler.compiled(source, {"FACTOR": 2})
    assert first.startswith(b"\x7fELF")
    with patch.object(compiler, "_compiled", side_effect=AssertionError):
        assert compiler.compiled(source, {"FACTOR": 2}) == first


def test_other_constants_or_code_are_another_file(source: Path) -> None:
    first = compiler.compiled(source, {"FACTOR": 2})
    assert compiler.compiled(source, {"FACTOR": 3}) != first
    source.write_text(SCALE.replace("*=", "+="))
    assert compiler.compiled(source, {"FACTOR": 2}) != first
    assert files(source) == ["scale.cubin"] * 3


def test_another_compiler_is_another_file(source: Path) -> None:
    compiler.compiled(source, {"FACTOR": 2})
    status, *_ = nvrtc.nvrtcVersion()
    with patch.object(nvrtc, "nvrtcVersion", lambda: (status, 99, 9)):
        compiler.compiled(source, {"FACTOR": 2})
    assert files(source) == ["scale.cubin"] * 2


def test_what_was_interrupted_leaves_nothing_that_is_taken_for_whole(source: Path) -> None:
    with patch("os.replace", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        compiler.compiled(source, {"FACTOR": 2})
    assert all("tmp" in path.parent.name for path in cached(source) if path.is_file())
    assert compiler.compiled(source, {"FACTOR": 2}).startswith(b"\x7fELF")


COMPILING = """
import sys
from pathlib import Path
from scalefold_kernels.cuda.compiler import compiled
print(len(compiled(Path(sys.argv[1]), {"FACTOR": 2})))
"""


def test_processes_may_compile_the_same_file_at_a_time(source: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": triton.knobs.cache.dir}
    command = [sys.executable, "-c", COMPILING, source]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = {process.communicate()[0] for process in processes}
    assert said == {f"{len(compiler.compiled(source, {'FACTOR': 2}))}\n"}
    assert files(source) == ["scale.cubin"]


def test_a_cache_that_cannot_be_written_is_named(source: Path) -> None:
    cached(source)
    triton.knobs.cache.dir = str(source / "cache")  # in a file, where no folder can be made
    with pytest.raises(OSError, match=re.escape(str(source))):
        compiler.compiled(source, {"FACTOR": 2})


def test_an_error_shows_what_the_compiler_says(source: Path) -> None:
    with pytest.raises(RuntimeError, match=r'scale\.cu.*\n.*"FACTOR" is undefined'):
        compiler.compiled(source, {})
    assert files(source) == []


def numbers(*arguments: object) -> list[tuple[type, object]]:
    return [(type(x), x.value) for argument in arguments for x in launch.values_of(argument)]


def test_arguments_have_the_types_that_functions_declare() -> None:
    x = torch.zeros(3)
    assert numbers(x, None, 7, 0.5, (1, 2**40)) == [
        (ctypes.c_void_p, x.data_ptr()),
        (ctypes.c_void_p, None),
        (ctypes.c_int32, 7),
        (ctypes.c_float, 0.5),
        (ctypes.c_int64, 1),
        (ctypes.c_int64, 2**40),
    ]
    with pytest.raises(OverflowError, match="strides go into tuples"):
        launch.values_of(2**31)


@pytest.mark.parametrize("module", ["cuda.bindings", "cuda.bindings.nvrtc"])
def test_where_they_are_missing_it_is_said_what_brings_them(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delattr(cuda.bindings, "nvrtc")
    reason = bindings.obstacle.__wrapped__()
    assert reason is not None
    assert "torch's CUDA build brings (cuda-bindings, nvidia-cuda-nvrtc)" in reason


def test_a_library_that_is_not_found_is_an_obstacle_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found() -> None:
        raise DynamicLibNotFoundError("libnvrtc.so.13")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", not_found)
    assert "libnvrtc.so.13" in str(bindings.obstacle.__wrapped__())


WAITING = """
extern "C" __global__ void count(int* x) {
  if (threadIdx.x == 0) {
    atomicAdd(x, 1);
    while (*(volatile int*)x < gridDim.x * gridDim.y) {}
  }
}
"""


def scaled(source: Path, x: torch.Tensor) -> None:
    launch.Kernel(source, "scale", threads=x.numel()).launch((1, 1), {"FACTOR": 2}, x)


@pytest.mark.gpu
def test_the_first_launch_may_be_captured(source: Path, device: torch.device) -> None:
    x = torch.ones(32, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scaled(source, x)  # compiled and loaded here
    assert files(source) == ["scale.cubin"]
    for times in (2, 4):
        graph.replay()
        assert x.tolist() == [times] * 32


@pytest.mark.gpu
def test_threads_and_streams_of_their_own(source: Path, device: torch.device) -> None:
    x = torch.ones(2, 32, device=device)
    torch.cuda.synchronize()

    def launch_there(row: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            scaled(source, x[row])
        stream.synchronize()

    with ThreadPoolExecutor(2) as threads:  # which have no context yet
        list(threads.map(launch_there, range(2)))
    assert x.unique().tolist() == [2]


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True])
def test_programs_that_wait_for_each_other_are_there_at_a_time_or_refused(
    captured: bool, source: Path, device: torch.device
) -> None:
    source.write_text(WAITING)
    kernel = launch.Kernel(source, "count", 1024, shared_bytes=200 * 1024, together=True)
    there = torch.cuda.get_device_properties(device).multi_processor_count
    x = torch.zeros(1, dtype=torch.int32, device=device)
    with pytest.raises(RuntimeError, match=rf"count: its {2 * there} programs wait for each other"):
        kernel.launch((there, 2), {}, x)
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel.launch((there, 1), {}, x)
        graph.replay()
    else:
        kernel.launch((there, 1), {}, x)
    assert x.item() == there
