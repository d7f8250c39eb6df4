"""Read the files of a run, complete or not.

A report is needed most after something went wrong. So a file that is missing, cut off or invalid is
left out and named in ``notes``, which the report shows first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scalefold.checkpoint.lock import LOCK_FOLDER, TRAINING_LOG
from scalefold.checkpoint.read import Metadata, checkpoints, read_metadata
from scalefold.errors import InputError
from scalefold.finetune.request import LISTING_REJECTED
from scalefold.raw.rejected import Rejected, read_rejected
from scalefold.report.benchmarks import Benchmark, read_benchmarks
from scalefold.report.data_set import DataSet, data_set
from scalefold.report.shapes import Evaluation, Ladder, MetricsRecord, misfit, read_shaped
from scalefold.shards.manifest import Manifest, data_hash
from scalefold.shards.schema import MANIFEST_FILE, REJECTED_FILE
from scalefold.train.sessions import Session, read_sessions

LADDER_FILE: Final = "ladder.json"


@dataclass
class RunResults:
    """The files of a run, by step where there are several.

    Attributes
    ----------
    key : str
        Of the training, see `scalefold.config.run_key`; empty where none has begun.
    evaluated_at : dict of int to float
        Unix time of the evaluation's file, by step.
    metrics : list of dict
        Records of the metrics log, by step; the later of two of the same step.
    notes : list of str
        What is missing or could not be read.
    """

    key: str = ""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    evaluated_at: dict[int, float] = field(default_factory=dict)
    checkpoints: list[Metadata] = field(default_factory=list)
    manifest: Manifest | None = None
    manifest_sha256: str | None = None
    data: DataSet = field(default_factory=DataSet)
    rejected: list[Rejected] = field(default_factory=list)
    benchmarks: list[Benchmark] = field(default_factory=list)
    ladder: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


def read_run(run: Path, key: str | None, shards: Path) -> RunResults:
    """Read everything that a report is made from.

    Parameters
    ----------
    run : Path
        The run's folder: ``weights/<key>/`` (checkpoints and metrics), ``evaluation/<key>/``,
        ``benchmarks/``, ``ladder.json``.
    key : str or None
        Of the training, or the folder's name of evaluations without one; None: the only training,
        and where there is none the only evaluations.

    Raises
    ------
    InputError
        If there is no such run folder, nothing of a run in it, or no such training; anything else
        that is wrong becomes a note.
    """
    _check_run(run)
    keys = _begun(run / "weights")
    evaluated = sorted(path.name for path in run.glob("evaluation/*/"))
    files = RunResults(key=_chosen(key, keys, evaluated, run))
    training = run / "weights" / files.key
    files.metrics = _metrics(training / "metrics.jsonl", files.notes)
    try:
        files.sessions = read_sessions(training, [r["time"] for r in files.metrics if "time" in r])
    except InputError as error:
        files.notes.append(f"{error}.")
    found = _evaluations(run / "evaluation" / files.key, files.notes)
    files.evaluations = sorted(found.values(), key=lambda evaluation: evaluation["step"])
    files.evaluated_at = {e["step"]: path.stat().st_mtime for path, e in found.items()}
    files.checkpoints = _checkpoints(training, files.notes)
    files.manifest, files.manifest_sha256 = _manifest(shards, files.notes)
    files.rejected = _rejected(shards / REJECTED_FILE, files.notes)
    try:
        files.data = data_set(shards, files.manifest_sha256, files.rejected)
    except InputError as error:
        files.notes.append(f"The chains of the shards cannot be counted: {error}")
    if (listing := run / LISTING_REJECTED).is_file():  # of a fine-tuning's own structures
        files.rejected = [*_rejected(listing, files.notes), *files.rejected]
    others = {other for other in keys if other != files.key}
    files.benchmarks = read_benchmarks(run / "benchmarks", others, files.notes)
    files.ladder = _ladder(run / LADDER_FILE, files.notes)
    files.notes.extend(_disagreements(files))
    return files


def _check_run(run: Path) -> None:
    if not run.is_dir():
        raise InputError(f"{run}: no such run folder. Give that of a run: results/<run_name>")
    expected = ("weights/*/", "evaluation/*/", f"shards/{MANIFEST_FILE}")
    if not any(next(run.glob(pattern), None) for pattern in expected):
        raise InputError(
            f"{run}: no run folder: it has neither weights/<key>/ (training, with metrics.jsonl) "
            f"nor evaluation/<key>/ nor {expected[-1]}. Give results/<run_name>, or a folder that "
            "is laid out like it"
        )


def _begun(weights: Path) -> list[str]:
    """Keys of the training runs, also of one that failed before it wrote anything."""
    failed = {LOCK_FOLDER, TRAINING_LOG}
    found = weights.iterdir() if weights.is_dir() else ()
    folders = sorted(path for path in found if path.is_dir())
    begun = [path for path in folders if {file.name for file in path.iterdir()} - failed]
    return [path.name for path in begun or folders]


def _chosen(key: str | None, trained: Sequence[str], evaluated: Sequence[str], run: Path) -> str:
    """The key that is asked for; else that of the only training, or of all that was evaluated."""
    either = trained or evaluated
    if key is None and len(either) < 2:
        return either[0] if either else ""
    known = dict.fromkeys([*trained, *evaluated])
    if key is None or key not in known:
        several = "training runs" if trained else "evaluated weights"
        raise InputError(
            f"{run}: "
            + (f"holds several {several}" if key is None else f"no training {key!r}")
            + f"; there are {', '.join(known) or 'none'}. Choose one with --key (`scalefold config "
            "key` prints that of a configuration)"
        )
    return key


def _metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    if not path.is_file():
        notes.append("No training metrics yet: metrics.jsonl is not there.")
        return []
    by_step: dict[int, dict[str, Any]] = {}
    broken = []
    lines = path.read_text("utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            broken.append(number)
            continue
        if misfit(MetricsRecord, record):
            broken.append(number)
        else:
            by_step[record["step"]] = record
    if broken:
        notes.append(
            f"metrics.jsonl: {_count(len(broken), 'line')} not written to the end and left out "
            f"(line {', '.join(map(str, broken[:5]))}{', …' if len(broken) > 5 else ''})."
        )
    if not by_step:
        notes.append("No training metrics yet: metrics.jsonl holds no complete record.")
    return [by_step[step] for step in sorted(by_step)]


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read one evaluation; raises as `read_shaped`."""
    return read_shaped(path, Evaluation, "an evaluation")


def _evaluations(folder: Path, notes: list[str]) -> dict[Path, dict[str, Any]]:
    found = {}
    for path in sorted(folder.glob("step-*.json")):
        try:
            found[path] = read_evaluation(path)
        except InputError as error:
            notes.append(f"Evaluation {path.name}: left out: {error}.")
    if not found:
        notes.append("No evaluations yet: evaluation/ holds no finished one.")
    return found


def _checkpoints(folder: Path, notes: list[str]) -> list[Metadata]:
    found = []
    for path in checkpoints(folder):
        try:
            found.append(read_metadata(path))
        except InputError as error:
            notes.append(f"Checkpoint {path.name}: left out: {error}.")
    if not found:
        notes.append("No checkpoint yet: weights/ holds no complete one.")
    return found


def _manifest(shards: Path, notes: list[str]) -> tuple[Manifest | None, str | None]:
    try:
        manifest = Manifest.read(shards)
    except InputError as error:
        notes.append(f"The shards' manifest cannot be read: {error}")
        return None, None
    return manifest, data_hash(shards)


def _rejected(path: Path, notes: list[str]) -> list[Rejected]:
    if not path.is_file():
        notes.append("No table of rejected chains: the shards have no rejected.tsv.")
        return []
    try:
        return read_rejected(path)
    except InputError as error:
        notes.append(f"The table of rejected chains is left out: {error}")
        return []


def _ladder(path: Path, notes: list[str]) -> dict[str, Any] | None:
    if not path.exists():
        return None  # measured on request only: nothing is missing
    try:
        return read_shaped(path, Ladder, "what scalefold bench ladder writes")
    except InputError as error:
        notes.append(f"{path.name}: left out: {error}.")
        return None


def _disagreements(files: RunResults) -> Iterator[str]:
    """Notes on results in one folder that do not belong together."""
    last = files.checkpoints[-1] if files.checkpoints else None
    expected = files.manifest_sha256
    steps = [
        str(evaluation["step"])
        for evaluation in files.evaluations
        if expected is not None and evaluation.get("data_manifest_sha256") not in (None, expected)
    ]
    if steps:
        yield (
            f"Evaluations of step {', '.join(steps)} are of other shards than those of this report "
            "(data_manifest_sha256 differs)."
        )
    late = [str(e["step"]) for e in files.evaluations if last and e["step"] > last.step]
    if last is not None and late:
        yield (
            f"Evaluations of step {', '.join(late)} are of an earlier training run in the same "
            f"folder: the last checkpoint is of step {last.step}."
        )
    if last is not None and files.manifest_sha256 not in (None, last.data_manifest_sha256):
        yield (
            "The last checkpoint was trained on other shards than those of this report "
            "(data_manifest_sha256 differs)."
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun} was" if number == 1 else f"{number} {noun}s were"
