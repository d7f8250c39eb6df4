"""Check and time Dynamic Axial Parallelism on the GPUs of this machine, in one go.

Each variant is a ``scalefold bench scaling`` in processes of its own, with a time limit: one that
fails or hangs leaves its last lines in the record, and the rest goes on. The record is written
again after each. The first full variant compiles; later ones find its caches.

    python -m tools.measure_dap --out dap.json
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "demo/mlperf.yaml"
# Float32 on plain torch, in CUDA graphs; rows and residues are no multiples of anything.
SMALL = (
    "preset=tiny", "training.precision=fp32", "training.kernels=torch", "training.compile=false",
    "features.crop_size=49", "features.max_msa_clusters=13",
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A call of the benchmark."""

    name: str
    processes: int
    degree: int
    settings: tuple[str, ...]
    seconds: int


def variants(gpus: int, settings: tuple[str, ...]) -> Iterator[Variant]:
    """The most telling first."""
    largest = max(degree for degree in (2, 4, 8) if degree <= gpus)
    yield Variant(f"float32, {largest} share a sample", largest, largest, SMALL, 100)
    if gpus >= 4:
        yield Variant("float32, 2 samples of 2", 4, 2, SMALL, 60)
    for degree in (2, 4, 8):
        if degree <= gpus:
            limit = 300 if degree == 2 else 230
            yield Variant(f"{degree} share a sample", degree, degree, settings, limit)


def run(variant: Variant, out: Path, seconds: float) -> dict[str, Any]:
    """Run a variant; its record, or how it failed."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={variant.processes}", "-m", "scalefold", "bench", "scaling",
        "-c", str(CONFIG), "--device", "cuda", "--steps", "3", "-o", str(out),
        "-s", f"parallel.dap={variant.degree}",
    ]  # fmt: skip
    for setting in variant.settings:
        command += ["-s", setting]
    started = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    said, timed_out = "", False
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
        # To the launcher, which ends its processes: within half a minute, if they hang.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            said, _ = process.communicate(timeout=50)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    took = round(time.monotonic() - started, 1)
    head = {"command": shlex.join(command[1:]), "seconds": took}
    if out.is_file():
        return head | {"record": json.loads(out.read_text("utf-8"))}
    return head | {
        "failed": f"no end within {seconds:.0f} s" if timed_out else process.returncode,
        "said": said.splitlines()[-120:],
    }


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description="Check and time DAP on this machine's GPUs.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=460, help="seconds for everything")
    parser.add_argument("-s", "--set", action="append", default=[], help="of the full variants")
    arguments = parser.parse_args()
    gpus = torch.cuda.device_count()
    if gpus < 2:
        raise SystemExit(f"torch sees {gpus} GPUs here, and a sample is shared by 2 at least")
    end = time.monotonic() + arguments.budget
    settings = ("training.recomputation=none", *arguments.set)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, variant in enumerate(variants(gpus, settings)):
            left = end - time.monotonic()
            if left < 20:
                found[variant.name] = {"failed": "no time left"}
            else:
                file = Path(folder, f"{number}.json")
                found[variant.name] = run(variant, file, min(left, variant.seconds))
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(found, indent=2) + "\n")
            print(f"{variant.name}: {summary(found[variant.name])}", flush=True)


def summary(result: dict[str, Any]) -> str:
    """In one line."""
    if "record" not in result:
        said = " | ".join(result.get("said", [])[-8:])
        return f"FAILED ({result['failed']}) {said}"
    record = result["record"]
    seconds = record["step_seconds_by_recycling"]
    means = {who: sum(times) / len(times) for who, times in seconds.items()}
    return (
        f"mean step {means['one']:.4f} -> {means['all']:.4f} s ({record['efficiency']:.2f}x), "
        f"gradient {record.get('gradient')}, "
        f"losses {record['training_steps']['largest_relative_difference']:.1e} apart, "
        f"equal weights {record['training_steps']['processes_have_equal_weights']}, "
        f"work {record['gpu_work_by_recycling']}, memory {record['peak_memory_gib']} GiB, "
        f"in {result['seconds']} s"
    )


if __name__ == "__main__":
    main()
