"""Predictions as `scalefold predict` writes them, and which of them are kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.predict.outputs import RECORD_FILE
from scalefold.predict.run import COLUMNS, SUMMARY_FILE
from scalefold.raw.table import read_table

Fate = Literal["kept", "not predicted", "length", "known", "confidence", "alignment", "structure"]
"""What became of a candidate; all but the first are why it is not kept."""

TABLE_COLUMNS: Final = (
    "name",
    "fate",
    "length",
    "mean_plddt",
    "confident_residues",
    "alignment_rows",
    "reason",
)


class PredictionRow(NamedTuple):
    """A line of a table of predictions.

    Attributes
    ----------
    folder : Path
        What ``predict --out`` wrote.
    problem : str
        Why there is no prediction; empty if there is one.
    """

    folder: Path
    name: str
    problem: str


@dataclass(frozen=True, eq=False)
class BestModel:
    """The best model of a sequence; N residues.

    Attributes
    ----------
    structure : Path
        ModelCIF.
    plddt : ndarray, shape (N,), float32
        0 to 100.
    """

    sequence: str
    structure: Path
    plddt: NDArray[np.float32]


@dataclass(frozen=True)
class Verdict:
    """What became of a candidate; numbers are None where it was not looked at so far.

    Attributes
    ----------
    length : int or None
        Residues.
    confident_residues : int or None
        At or above ``features.distilled.min_plddt``.
    alignment_rows : int or None
        Different rows, the query included.
    """

    name: str
    fate: Fate = "kept"
    length: int | None = None
    mean_plddt: float | None = None
    confident_residues: int | None = None
    alignment_rows: int | None = None
    reason: str = ""

    def refused(self, fate: Fate, reason: str) -> Verdict:
        """Return the same with another fate."""
        return replace(self, fate=fate, reason=reason)

    def row(self) -> list[str]:
        """Cells of the table, by `TABLE_COLUMNS`."""
        mean = None if self.mean_plddt is None else f"{self.mean_plddt:.2f}"
        values = (self.length, mean, self.confident_residues, self.alignment_rows)
        shown = ["" if value is None else str(value) for value in values]
        return [self.name, self.fate, *shown, self.reason]


def read_candidates(folders: Sequence[Path]) -> list[PredictionRow]:
    """Read the tables of predictions of all folders, sorted by name.

    Raises
    ------
    InputError
        A folder has no table, or two have a prediction of one name.
    """
    found: dict[str, PredictionRow] = {}
    for folder in folders:
        for _, fields in read_table(folder / SUMMARY_FILE, COLUMNS):
            line = dict(zip(COLUMNS, fields, strict=True))
            name, problem = line["name"], line["reason"] if line["fate"] == "failed" else ""
            if name in found:
                raise InputError(
                    f"{folder} and {found[name].folder} have a prediction of {name} each: rename "
                    "one of the sequences, or leave one of the folders out"
                )
            found[name] = PredictionRow(folder, name, problem)
    return [found[name] for name in sorted(found)]


def read_prediction(candidate: PredictionRow) -> BestModel:
    """Read the record of a candidate that was predicted.

    Raises
    ------
    InputError
        It is missing or damaged.
    """
    folder = candidate.folder / candidate.name
    try:
        record = json.loads((folder / RECORD_FILE).read_text("utf-8"))
        best = record["models"][0]
        plddt = np.asarray(best["plddt"], np.float32)
        sequence = str(record["sequence"])
        if plddt.shape != (len(sequence),):
            raise ValueError(f"{len(sequence)} residues, pLDDT of shape {plddt.shape}")
        return BestModel(sequence, folder / str(best["files"]["model_cif"]), plddt)
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise InputError(
            f"{folder / RECORD_FILE}: is no record of a prediction ({error}). Delete {folder} and "
            "predict again"
        ) from None


def judge(name: str, prediction: BestModel, *, known: bool, config: Config) -> Verdict:
    """Judge a prediction by its sequence and its confidence.

    Parameters
    ----------
    known : bool
        There is an experimental structure of the same sequence.
    config : Config
        ``distillation`` and ``features.distilled`` are used.
    """
    limits, least = config.distillation, config.features.distilled.min_plddt
    mean = float(prediction.plddt.mean(dtype=np.float64))
    num_confident = int((prediction.plddt >= least).sum())
    verdict = Verdict(
        name,
        length=len(prediction.sequence),
        mean_plddt=mean,
        confident_residues=num_confident,
    )
    if not limits.min_length <= len(prediction.sequence) <= limits.max_length:
        return verdict.refused(
            "length",
            f"distillation.min_length is {limits.min_length}, max_length {limits.max_length}",
        )
    if known:
        return verdict.refused("known", "the shards have an experimental structure of it")
    if mean < limits.min_mean_plddt:
        return verdict.refused(
            "confidence", f"distillation.min_mean_plddt is {limits.min_mean_plddt:g}"
        )
    if not num_confident:
        return verdict.refused(
            "confidence", f"no residue reaches features.distilled.min_plddt, {least:g}"
        )
    return verdict


def fates(verdicts: Iterable[Verdict]) -> str:
    """Count what became of candidates, in words."""
    counts = Counter(verdict.fate for verdict in verdicts)
    return ", ".join(f"{fate}: {count:,}" for fate, count in counts.most_common())
