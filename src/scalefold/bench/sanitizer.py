"""Kernels under NVIDIA's compute-sanitizer: accesses beyond tensors, and races.

Each run is a training step of a small model (`small_step`) in a process of its own, where every
tensor is an allocation of its own, so that a step beyond one is seen. Kernels of others are left
out: they are not ours to judge, and would take most of the time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from scalefold.bench.record import origin, write_record
from scalefold.bench.small_step import small_config
from scalefold.config.schema import Config
from scalefold.errors import InputError

_OF_OTHERS: Final = ("_Z", "nvjet", "cublas", "cudnn", "cutlass", "gemm", "splitKreduce", "nccl")
"""Parts of the names of kernels that are not ours: C++, and NVIDIA's libraries."""

_SUMMARY: Final = re.compile(
    r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error)"
)
_PREFIX: Final = "========= "
_MESSAGES: Final = 20
"""Lines of a run that reported something, for the record."""


@dataclass(frozen=True)
class Run:
    """One process.

    Attributes
    ----------
    tool : str
        Of compute-sanitizer.
    precision : str
    sizes : tuple of int
        Residues, MSA rows, extra rows.
    """

    tool: str
    precision: str
    sizes: tuple[int, int, int]


# 256 and 384 residues have kernels of their own, and so have 8 rows (two are the templates'); 37
# divide nothing, nor do 161 extra rows, which are too many for some kernels. racecheck stops at
# kernels that use TMA: float32 has none.
_ODD, _CROP, _LARGE, _TINY = (37, 36, 161), (256, 6, 9), (384, 6, 9), (13, 5, 7)
RUNS: Final = (
    *(
        Run(tool, "bf16", sizes)
        for sizes in (_ODD, _CROP, _LARGE)
        for tool in ("memcheck", "synccheck")
    ),
    Run("memcheck", "fp32", _ODD),
    Run("racecheck", "fp32", _TINY),
)


def bench_sanitizer(
    config: Config,
    shards: Path,
    out: Path,
    *,
    tools: Collection[str],
    processes: int,
    seconds: float,
    device: torch.device,
    console: Console,
) -> dict[str, Any]:
    """Run training steps of small models under compute-sanitizer and write what it says as JSON.

    Parameters
    ----------
    config : Config
        Widths of the model, loss and optimiser.
    shards : Path
        Where the sample comes from.
    out : Path
        JSON file, written anew after each run.
    tools : collection of str
        Of compute-sanitizer; empty for all that are of use.
    processes : int
        Runs beside each other.
    seconds : float
        After so long a run is ended, and recorded as such.
    device : torch.device
    console : Console

    Raises
    ------
    InputError
        There is no compute-sanitizer or no such tool, or the file cannot be written.
    """
    program = _program()
    known = dict.fromkeys(run.tool for run in RUNS)
    unknown = sorted(set(tools) - set(known))
    if unknown:
        raise InputError(f"no tool {', '.join(unknown)}; there are {', '.join(known)}")
    runs = [run for run in RUNS if not tools or run.tool in tools]
    result = origin("sanitizer", device) | {"sanitizer": _version(program), "runs": []}
    stop = Event()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:

        def make(number: int) -> dict[str, Any]:
            own = Path(folder, str(number))
            own.mkdir()
            return _run(runs[number], program, config, shards.absolute(), own, seconds, stop)

        try:
            for made in as_completed([pool.submit(make, number) for number in range(len(runs))]):
                row = made.result()
                result["runs"].append(row)
                write_record(result, out)
                console.print(_table([row]))
        finally:  # an error, or Ctrl-C, waits for no run
            stop.set()
            pool.shutdown(cancel_futures=True)
    console.print(_table(result["runs"]))
    return result


def clean(result: dict[str, Any]) -> bool:
    """Whether all runs came to their end with finite numbers, and nothing was reported."""
    return all(row["errors"] == 0 and row["finite"] for row in result["runs"])


def find_program() -> str | None:
    """Where compute-sanitizer is."""
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )


def _program() -> str:
    found = find_program()
    if found is None:
        raise InputError(
            "compute-sanitizer is not on PATH: install NVIDIA's CUDA toolkit, or "
            "pip install nvidia-cuda-sanitizer-api and put its folder on PATH"
        )
    return found


def _version(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return next((line for line in said.stdout.splitlines() if "Version" in line), "unknown")


def _run(
    run: Run, program: str, config: Config, shards: Path, folder: Path, seconds: float, stop: Event
) -> dict[str, Any]:
    """One process, and what it and the sanitizer wrote."""
    tree, found, log = folder / "config.json", folder / "step.json", folder / "log.txt"
    tree.write_text(small_config(config, run.precision, run.sizes).model_dump_json(), "utf-8")
    command = [
        *under(program, run.tool, log),
        *(sys.executable, "-m", "scalefold.bench.small_step", str(tree), str(shards), str(found)),
    ]
    started = time.perf_counter()
    end = ended(command, folder / "output.txt", seconds, stop)
    text = log.read_text("utf-8", "replace") if log.is_file() else ""
    step = json.loads(found.read_text("utf-8")) if found.is_file() else {}
    row = {
        "tool": run.tool,
        "precision": run.precision,
        "residues": run.sizes[0],
        "msa_rows": run.sizes[1],
        "extra_rows": run.sizes[2],
        "seconds": round(time.perf_counter() - started, 1),
        "ended": end,
        "errors": errors(text),
        "finite": step.get("finite", False),
        "kernels": step.get("kernels", []),
    }
    if row["errors"] or not step:
        output_text = (folder / "output.txt").read_text("utf-8", "replace")
        row["said"] = [*_distinct(text), *output_text.splitlines()[-_MESSAGES:]]
    return row


def under(program: str, tool: str, log: Path) -> list[str]:
    """The beginning of a command that is to run under the sanitizer."""
    return [
        *(program, "--tool", tool, "--target-processes", "application-only"),
        # Waits for as long as torch takes to load beside other work. Of steps whose sanitizer had
        # given up waiting, none was done after 300 s.
        *("--launch-timeout", "0"),
        # A call that fails raises in Python, or asks for what another version of the driver has.
        *("--report-api-errors", "no"),
        *("--log-file", str(log)),
        *(option for part in _OF_OTHERS for option in ("--kernel-name-exclude", f"kns={part}")),
    ]


def ended(command: Sequence[str], output: Path, seconds: float, stop: Event) -> str:
    """Run a command with each tensor an allocation of its own; how it ended.

    After so many seconds, or when it is to stop, it is killed.
    """
    # Torch's allocator would put many tensors into one allocation.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with (
        output.open("w") as file,
        subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, start_new_session=True
        ) as process,
    ):
        started = time.monotonic()
        while process.poll() is None:
            if stop.wait(0.1) or time.monotonic() - started > seconds:
                os.killpg(process.pid, signal.SIGKILL)  # the sanitizer and what it runs
                return f"ended after {time.monotonic() - started:.0f} s"
        return f"exit code {process.returncode}"


def errors(log: str) -> int | None:
    """Errors that the sanitizer counted; None where it did not come to count them."""
    found = _SUMMARY.search(log)
    return None if found is None else int(found[1] or found[2])


def _distinct(log: str) -> list[str]:
    """What was reported, each kind once, without stacks and addresses."""
    lines = (line.removeprefix(_PREFIX) for line in log.splitlines())
    kinds = dict.fromkeys(
        re.sub(r"0x[0-9a-f]+|\(\d+,\d+,\d+\)", "…", line)
        for line in lines
        if line.strip() and "Host Frame" not in line
    )
    return list(kinds)[:_MESSAGES]


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("tool", "precision", "residues", "kernels", "errors", "finite", "ended", "s")
    for row in rows:
        table.add_row(
            *(row["tool"], row["precision"], str(row["residues"]), str(len(row["kernels"]))),
            "-" if row["errors"] is None else str(row["errors"]),
            *("yes" if row["finite"] else "no", row["ended"], f"{row['seconds']:.0f}"),
        )
    return table
