"""Feed damaged files to everything that reads files: only errors that name a file may come out.

``python -m tests.attack.fuzz --inputs 100000 --out findings`` attacks all targets: one that takes
four times as long for an input gets half as many. An input depends on the seed, the target and its
number alone, so a finding can be made again. ``findings`` gets the first inputs of each kind of
finding, with the traceback, and from time to time the table. The exit code is 1 if there is any
finding. Inputs are written to memory where the system has a folder for it; one that ends the
interpreter stays there.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from tests.attack.mutations import mutate
from tests.attack.targets import TARGETS, Files, Target

CPU_SECONDS: Final = 120.0
"""Of one input, which takes a fraction of a second: more is a hang."""
_MEMORY: Final = Path("/dev/shm")
_KEPT_OF_A_KIND: Final = 3
_ROUND: Final = 50


@dataclass
class Outcome:
    """What became of a target's inputs."""

    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    findings: Counter[str] = field(default_factory=Counter)


def damaged(files: Files, case: str, rng: random.Random) -> tuple[Files, str]:
    """Return a case's files with one of them damaged, and its name."""
    name = rng.choice(sorted(files))
    content = files[name]
    while (changed := mutate(content, files[rng.choice(sorted(files))], rng)) == content:
        pass
    return {**files, name: changed}, name


def attack(target: Target, number: int, seed: int, work: Path, out: Path, outcome: Outcome) -> None:
    """Try one input, in a folder that is gone after it; ``out`` gets it if it is a finding."""
    started = time.process_time()
    rng = random.Random(f"{seed} {target.name} {number}")
    case = rng.choice(sorted(target.cases))
    files, name = damaged(target.cases[case], case, rng)
    folder = work / case
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    try:
        with _limited():
            target.use(folder)
    except Exception as error:
        if _is_domain_error(error, files, folder):
            outcome.refused += 1
        else:
            _keep(error, work, out / f"{target.name}-{number}", name, outcome)
    finally:
        shutil.rmtree(work)
        outcome.inputs += 1
        outcome.seconds += time.process_time() - started


def _is_domain_error(error: Exception, files: Files, folder: Path) -> bool:
    """Whether it is of bad input, and names a file of the case or its folder."""
    named = any(Path(path).name in str(error) for path in files) or str(folder) in str(error)
    return isinstance(error, ValueError) and named


def _keep(error: Exception, work: Path, kept: Path, name: str, outcome: Outcome) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/scalefold/" in frame.filename] or frames
    kind = f"{type(error).__name__} in {Path(ours[-1].filename).name}:{ours[-1].lineno}"
    outcome.findings[kind] += 1
    if outcome.findings[kind] <= _KEPT_OF_A_KIND:
        shutil.copytree(work, kept, dirs_exist_ok=True)
        text = "".join(traceback.format_exception(error))
        (kept / "traceback.txt").write_text(f"damaged: {name}\n\n{text}", "utf-8")


@contextmanager
def _limited() -> Iterator[None]:
    """End what takes too much time of the processor; a busy machine does not count."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise RuntimeError(f"takes more than {CPU_SECONDS:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def table(outcomes: dict[str, Outcome]) -> str:
    """A line a target, and below it a line a kind of finding."""
    lines = [f"{'target':12} {'inputs':>9} {'refused':>9} {'findings':>9} {'ms each':>9}"]
    for name, outcome in outcomes.items():
        each = 1e3 * outcome.seconds / max(outcome.inputs, 1)
        found = outcome.findings.total()
        lines.append(f"{name:12} {outcome.inputs:9} {outcome.refused:9} {found:9} {each:9.2f}")
        lines += [f"    {count} x {kind}" for kind, count in outcome.findings.most_common()]
    return "\n".join(lines)


@contextmanager
def quietly() -> Iterator[None]:
    """Let damaged files be without a word in the log."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)


def main() -> int:
    """Attack until the number of inputs is reached; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, required=True, help="in all")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="default: all")
    parser.add_argument("--out", type=Path, required=True, help="folder of the findings")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch, quietly():
        work = Path(scratch) / "now"
        targets = {name: TARGETS[name](Path(scratch)) for name in options.target or TARGETS}
        outcomes = {name: Outcome() for name in targets}
        for _ in range(0, options.inputs, _ROUND):
            name = min(outcomes, key=lambda name: outcomes[name].seconds * outcomes[name].inputs)
            for number in range(outcomes[name].inputs, outcomes[name].inputs + _ROUND):
                attack(targets[name], number, options.seed, work, options.out, outcomes[name])
            (options.out / "table.txt").write_text(table(outcomes) + "\n")
    print(table(outcomes))
    return int(any(outcome.findings for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
