"""Kill each stage of the work at random moments, go on, and compare with an undisturbed run.

``python -m tests.attack.kills --kills 100`` starts the stages in processes of their own, as the
command line does, kills them with SIGKILL, starts them again until they end, and compares all files
that they leave. The exit code is 1 if a file differs or a stage does not end well.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from tests.unit.conftest import DEMO, MICRO
from tests.unit.train.trajectory import records

from scalefold.config import config_to_yaml, make_config
from scalefold.config.load import merge
from scalefold.io.atomic import TEMPORARY_MARK

_PACK: Final = ("pack", "--raw", "raw", "--out", "shards")
STAGES: Final[Mapping[str, Sequence[str]]] = {
    "fetch": ("fetch", "--out", "raw"),
    "structures": (*_PACK, "--stage=structures", "--bucket=0"),
    "alignments": (*_PACK, "--stage=alignments", "--bucket=0"),
    "index": (*_PACK, "--stage=index"),
    "train": ("train", "--shards", "shards", "--out", "training", "--resume", "--device=cpu"),
    "evaluate": (
        *("evaluate", "training/step-00000004", "--shards", "shards", "--out", "evaluation.json"),
        "--device=cpu",
    ),
}
"""The commands, each of which needs what those before it have made."""

_OF_THE_MOMENT: Final = {"log", "lock", "tensorboard", "sessions.jsonl"}
"""When and where it ran: differs with each run."""


def work(folder: Path, command: Sequence[str], started: Connection) -> None:
    """Run a command of ``scalefold`` in ``folder``, in a group of processes of its own."""
    from scalefold.cli import app

    os.setpgrp()
    os.chdir(folder)
    with (folder / "log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    started.send(True)
    sys.exit(app([*command, "--config", "config.yaml"], standalone_mode=False))


def run(folder: Path, stage: str, seconds: float | None = None) -> float | None:
    """Run a stage, and kill it after ``seconds``; return how long it took if it came to its end.

    Raises
    ------
    RuntimeError
        It ended by itself, and not well.
    """
    started, of_child = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=work, args=(folder, STAGES[stage], of_child))
    process.start()
    of_child.close()
    with contextlib.suppress(EOFError):
        started.recv()
    start = time.monotonic()
    process.join(seconds)
    took = time.monotonic() - start
    if process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"{stage} ends with {process.exitcode}:\n{(folder / 'log').read_text()}")
    return took if process.exitcode == 0 else None


def left(folder: Path) -> dict[str, object]:
    """Return what a run has left, by file, without what depends on when it ran."""
    files: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        passing = TEMPORARY_MARK in path.name or _OF_THE_MOMENT.intersection(name.parts)
        if path.is_file() and not passing:
            files[name.as_posix()] = path.read_bytes()
    if "training/metrics.jsonl" in files:
        files["training/metrics.jsonl"] = records(folder / "training")
    return files


def prepare(folder: Path) -> None:
    """Write the configuration of a training of a second, on two bundled chains."""
    folder.mkdir()
    rows = ("chain_key\tsplit\tcluster_id", "5pti_A\ttrain\t5pti_A", "1a8o_A\tvalidation\t1a8o_A")
    (folder / "chains.tsv").write_text("\n".join(rows) + "\n")
    mirrors = {"mmcif": [f"{DEMO}/mirror/wwpdb"], "alignments": [f"{DEMO}/mirror/openproteinset"]}
    data = {"alignments": ["swissprot_hits"], "buckets": 1, "mirrors": mirrors}
    more = {"training": {"steps": 4}, "evaluation": {"splits": ["validation"], "recycling": 0}}
    tree = merge(merge(MICRO, {"data": {"chains": "chains.tsv", **data}}), more)
    (folder / "config.yaml").write_text(config_to_yaml(make_config(tree)))


@dataclass
class Undisturbed:
    """How long a stage takes, and the folder as it is before it."""

    seconds: float
    before: Path
    after: dict[str, object]


def undisturbed(scratch: Path, stages: Sequence[str]) -> dict[str, Undisturbed]:
    """Run all stages up to the last of ``stages``, and keep the folder before each of these."""
    whole = scratch / "whole"
    prepare(whole)
    found = {}
    for stage in list(STAGES)[: max(map(list(STAGES).index, stages)) + 1]:
        before = scratch / f"before-{stage}"
        if stage in stages:
            shutil.copytree(whole, before)
        seconds = run(whole, stage)
        if stage in stages:
            found[stage] = Undisturbed(seconds or 0.0, before, left(whole))
    return found


def attack(stage: str, reference: Undisturbed, rng: random.Random, folder: Path) -> int:
    """Kill a stage, once or several times, and let it come to its end; return how often.

    Raises
    ------
    RuntimeError
        It does not go on, or leaves other files than the undisturbed run.
    """
    shutil.copytree(reference.before, folder)
    kills = 0
    while kills == 0 or rng.random() < 0.3:
        kills += run(folder, stage, rng.uniform(0, reference.seconds)) is None
    run(folder, stage)
    found, expected = left(folder), reference.after
    names = sorted(found.keys() | expected.keys())
    differ = [name for name in names if found.get(name) != expected.get(name)]
    if differ:
        raise RuntimeError(f"{stage}, killed {kills} times: {', '.join(differ)} differ in {folder}")
    shutil.rmtree(folder)
    return kills


def main() -> int:
    """Kill as often as is asked for, each stage as often as the others; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, required=True, help="in all, at least")
    parser.add_argument("--stage", action="append", choices=sorted(STAGES), help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, scratch = random.Random(options.seed), Path(tempfile.mkdtemp(prefix="kills-"))
    references = undisturbed(scratch, options.stage or list(STAGES))
    kills, failures = dict.fromkeys(references, 0), 0
    while sum(kills.values()) < options.kills:
        stage = min(kills, key=lambda name: kills[name])
        try:
            folder = scratch / f"{stage}-{kills[stage]}"
            kills[stage] += attack(stage, references[stage], rng, folder)
        except RuntimeError as error:
            failures += 1
            kills[stage] += 1
            print(error, file=sys.stderr)
    print("\n".join(f"{stage:12} {count:5} kills" for stage, count in kills.items()))
    print(f"{failures} failures" + (f": see {scratch}" if failures else ""))
    if not failures:
        shutil.rmtree(scratch)
    return int(failures > 0)


_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["scalefold.train.start", "scalefold.evaluate.run"])

if __name__ == "__main__":
    sys.exit(main())
