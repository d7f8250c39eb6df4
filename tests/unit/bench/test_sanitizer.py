"""Runs under compute-sanitizer, with a program in its place that writes what it would."""

import json
import sys
import time
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console

from scalefold.bench import sanitizer
from scalefold.bench.sanitizer import RUNS, bench_sanitizer, clean, errors
from scalefold.bench.small_step import small_config, small_step
from scalefold.bench.variation import varied
from scalefold.config.load import load_config
from scalefold.config.schema import Config
from scalefold.errors import InputError

DEMO = Path(__file__).parents[3] / "demo" / "mlperf.yaml"

PROGRAM = """#!/bin/sh
[ "$1" = --version ] && {{ echo "Version 1 of a test"; exit; }}
[ "$PYTORCH_NO_CUDA_MEMORY_CACHING" = 1 ] || exit 3
case "$*" in *"--launch-timeout 0 "*) ;; *) exit 4;; esac
while [ $# -gt 1 ]; do [ "$1" = --log-file ] && log=$2; shift; done
{writes}
"""


@pytest.fixture(scope="module")
def full_width() -> Config:
    return load_config([DEMO])


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def install(writes: str) -> None:
        program = tmp_path / "compute-sanitizer"
        program.write_text(PROGRAM.format(writes=writes))
        program.chmod(0o755)
        monkeypatch.setattr(sanitizer, "_program", lambda: str(program))

    return install


@pytest.fixture
def run(full_width: Config, tmp_path: Path, install):
    def run(writes: str, seconds: float = 30) -> dict:
        install(writes)
        out = tmp_path / "sanitizer.json"
        result = bench_sanitizer(
            full_width,
            tmp_path,
            out,
            tools=("racecheck",),
            processes=2,
            seconds=seconds,
            device=torch.device("cpu"),
            console=Console(quiet=True),
        )
        assert json.loads(out.read_text()) == result
        assert result["sanitizer"] == "Version 1 of a test"
        return result

    return run


STEP = """echo '{"finite": true, "kernels": ["norm.kernel.a_kernel"]}' > $1\n"""


def test_a_step_of_which_nothing_is_reported_is_clean(run) -> None:
    result = run(STEP + "echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors)' > $log")
    assert clean(result)
    assert [row["tool"] for row in result["runs"]] == ["racecheck"]
    assert result["runs"][0]["kernels"] == ["norm.kernel.a_kernel"]
    assert "said" not in result["runs"][0]


def test_what_is_reported_is_counted_and_said_once(run) -> None:
    lines = [
        *("========= Invalid __global__ read of size 2 bytes at a_kernel",) * 2,
        "=========     Host Frame: launch",
        "========= ERROR SUMMARY: 2 errors",
    ]
    result = run(STEP + "".join(f"echo '{line}' >> $log\n" for line in lines))
    assert not clean(result)
    (row,) = result["runs"]
    assert row["errors"] == 2
    assert row["said"] == ["Invalid __global__ read of size 2 bytes at a_kernel", lines[-1][10:]]


def test_a_step_that_fails_is_not_clean_though_nothing_is_reported(run) -> None:
    result = run("echo no such GPU; echo '========= ERROR SUMMARY: 0 errors' > $log; exit 1")
    assert not clean(result)
    assert result["runs"][0]["ended"] == "exit code 1"
    assert result["runs"][0]["said"][-1] == "no such GPU"


def test_a_run_that_takes_too_long_is_ended(run) -> None:
    result = run("exec sleep 60", seconds=0.2)
    assert not clean(result)
    assert result["runs"][0]["errors"] is None
    assert result["runs"][0]["ended"].startswith("ended after")


def test_an_interruption_waits_for_no_run(
    full_width: Config, tmp_path: Path, install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("case $log in */0/*) ;; *) exec sleep 600;; esac")
    monkeypatch.setattr(sanitizer, "write_record", Mock(side_effect=KeyboardInterrupt))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bench_sanitizer(
            full_width,
            tmp_path,
            tmp_path / "sanitizer.json",
            tools=(),
            processes=2,
            seconds=600,
            device=torch.device("cpu"),
            console=Console(quiet=True),
        )
    assert time.monotonic() - started < 300  # half of a run, of which there are six


def test_errors_are_those_of_the_summary() -> None:
    assert errors("========= ERROR SUMMARY: 1 error") == 1
    assert errors("= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)") == 2
    assert errors("========= COMPUTE-SANITIZER") is None


BEYOND = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)

kernel[(1,)](torch.zeros(1000, device="cuda"), 1024)
torch.cuda.synchronize()
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_kernel_that_writes_beyond_its_tensor_is_found(tmp_path: Path) -> None:
    if sanitizer.find_program() is None:
        pytest.skip("needs compute-sanitizer")
    script, log = tmp_path / "beyond.py", tmp_path / "log.txt"
    script.write_text(BEYOND)
    command = [*sanitizer.under(sanitizer._program(), "memcheck", log), sys.executable, str(script)]
    assert sanitizer.ended(command, tmp_path / "output.txt", 100, Event()) != "exit code 0"
    assert errors(log.read_text()) > 0


def test_an_unknown_tool_is_named(full_width: Config, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sanitizer, "_program", lambda: "compute-sanitizer")
    with pytest.raises(InputError, match="no tool leakcheck; there are memcheck, synccheck, race"):
        bench_sanitizer(
            full_width,
            tmp_path,
            tmp_path / "out.json",
            tools=("leakcheck",),
            processes=1,
            seconds=1,
            device=torch.device("cpu"),
            console=Console(quiet=True),
        )


def test_without_the_program_it_is_said_where_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr(sanitizer.shutil, "which", lambda *_, **__: None)
    with pytest.raises(InputError, match="pip install nvidia-cuda-sanitizer-api"):
        sanitizer._program()


def test_the_small_model_has_all_channels_and_makes_a_step(
    full_width: Config, shards: Path
) -> None:
    for run in RUNS:
        small = small_config(full_width, run.precision, run.sizes)
        assert small.model.c_m == full_width.model.c_m
        assert small.training.kernels == "triton"
        assert small.features.crop_size == run.sizes[0]
    on_cpu = {"training.kernels": "torch", "training.precision": "fp32"}
    tiny = varied(small_config(full_width, "fp32", (13, 5, 7)), on_cpu)
    assert small_step(tiny, shards, torch.device("cpu")) == {"finite": True, "kernels": []}
