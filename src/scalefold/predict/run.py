"""Predict many targets with one or several sets of weights.

A prediction is a function of the sequence, its alignment, the weights and the settings. Random
numbers depend on ``evaluation.seed`` and the target's name. So a run may be interrupted, and the
same call goes on with the missing targets.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import torch
from rich.console import Console
from torch import Tensor

import scalefold
from scalefold.checkpoint.provenance import made_with
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.io.atomic import make_folder
from scalefold.io.case_collisions import check_case_collisions
from scalefold.predict.ensemble import Ensemble, Key
from scalefold.predict.features_ahead import made_ahead
from scalefold.predict.members import Member
from scalefold.predict.outputs import (
    RECORD_FILE,
    check_settings,
    former_record,
    read_record,
    write_target,
)
from scalefold.predict.predictor import choose_precision, memory_explained, not_finite
from scalefold.predict.ranking import rank
from scalefold.predict.shared_chain import SharedPredictors
from scalefold.predict.targets import Target
from scalefold.progress import LiveLine
from scalefold.raw.table import write_table

logger = logging.getLogger(__name__)

SUMMARY_FILE: Final = "predictions.tsv"
COLUMNS: Final = ("name", "length", "fate", "best", "mean_plddt", "ptm", "ranked_by", "reason")
_MOST_PENDING: Final = 4
"""Targets that wait to be written: bounds the memory they take."""

Fate = Literal["predicted", "there", "failed"]


@dataclass(frozen=True)
class Outcome:
    """The result for one target.

    Attributes
    ----------
    length : int or None
        None where there is no sequence.
    fate : str
        ``predicted``, ``there`` (before this run), or ``failed``.
    record : dict or None
        Of the prediction that the folder has, see `scalefold.predict.outputs`. Where the target
        failed, it is of another sequence or alignment.
    """

    name: str
    length: int | None
    fate: Fate
    reason: str = ""
    record: Mapping[str, Any] | None = None

    def row(self) -> list[str]:
        """Cells of the summary table, by `COLUMNS`."""
        best: Mapping[str, Any] = self.record["models"][0] if self.record else {}
        label = best.get("weights", {}).get("label", "")
        ptm, measure = best.get("ptm"), self.record["ranked_by"] if self.record else ""
        numbers = (best.get("mean_plddt"), ptm)
        shown = ["" if number is None else str(number) for number in numbers]
        length = "" if self.length is None else str(self.length)
        return [self.name, length, self.fate, label, *shown, measure, self.reason]


def predict_targets(
    targets: Sequence[Target],
    members: Sequence[Member],
    out: Path,
    device: torch.device,
    *,
    tolerance_angstrom: float = 0.0,
    refused: Sequence[Outcome] = (),
    others: bool = True,
    console: Console | None = None,
    predictors: SharedPredictors | None = None,
) -> list[Outcome]:
    """Predict targets, the short ones first, and write what `write_target` says.

    While the model works, the features of the next target are made and earlier predictions are
    written. A target that cannot be predicted is logged, and the rest goes on.

    Parameters
    ----------
    targets : sequence of Target
        Of different names.
    out : Path
        Gets a folder for each target, and ``predictions.tsv``. A target whose folder is there
        already, from the same sequence, alignment, weights and settings, is left as it is.
    device : torch.device
        A GPU must be torch's current one.
    tolerance_angstrom : float
        Recycling ends when it moves atoms less than this; 0: all passes are made.
    refused : sequence of Outcome
        Go into the table too.
    others : bool
        Whether other predictions that the folder has go into the table too.
    console : Console, optional
        For the progress bar; default standard error.
    predictors : SharedPredictors, optional
        If several processes share each target, of which this is the first.

    Returns
    -------
    list of Outcome
        The table: in the order of ``targets``, then those refused before, then others.

    Raises
    ------
    InputError
        The folder cannot be written, has one folder for two names, or has predictions of these
        targets by other weights or settings.
    """
    make_folder(out)
    check_case_collisions((out / target.name for target in targets), out)
    outcomes: dict[str, Outcome] = {}
    work = _Work(members, out, device, tolerance_angstrom, predictors)
    check_settings(out, targets, work.settings)
    try:
        with LiveLine("predicting", len(targets), console) as progress:

            def settle(outcome: Outcome) -> None:
                outcomes[outcome.name] = outcome
                if outcome.fate == "failed":
                    logger.warning("%s failed: %s", outcome.name, outcome.reason)
                progress.show(len(outcomes), f"{outcome.name}: {_said(outcome)}")

            work.run(sorted(targets, key=lambda target: target.length), settle)
    finally:
        settled = [outcomes[t.name] for t in targets if t.name in outcomes]
        settled = [one if one.record else _with_former(one, out) for one in settled]
        settled += refused
        if others:
            settled += _others(out, {outcome.name for outcome in settled})
        write_table(out / SUMMARY_FILE, COLUMNS, (outcome.row() for outcome in settled))
    return settled


def _with_former(outcome: Outcome, out: Path) -> Outcome:
    return replace(outcome, record=former_record(out / outcome.name))


def _others(out: Path, names: set[str]) -> Iterator[Outcome]:
    """Predictions that the folder has under other names."""
    for folder in sorted(path.parent for path in out.glob(f"[!.]*/{RECORD_FILE}")):
        if folder.name not in names and (record := former_record(folder)):
            yield Outcome(folder.name, record["length"], "there", record=record)


@dataclass(frozen=True)
class _Ready:
    """The features of a prediction, on the device, and facts for its record."""

    made_from: dict[str, Any]
    aatype: Tensor
    alignment_rows: int
    features: dict[Key, list[Features]]


class _Work:
    """Predicts targets one after another; files are read and written meanwhile."""

    def __init__(
        self,
        members: Sequence[Member],
        out: Path,
        device: torch.device,
        tolerance_angstrom: float,
        predictors: SharedPredictors | None,
    ) -> None:
        self._ensemble = Ensemble(members, device, tolerance_angstrom, predictors)
        self._out, self._device = out, device
        self._max_length = min(member.config.evaluation.max_length for member in members)
        self.settings = {
            "weights": sorted(member.loaded.weights_sha256 for member in members),
            "settings": sorted((_settings(m, device) for m in members), key=str),
            "tolerance_angstrom": tolerance_angstrom,
        }
        self._made_with = {"scalefold": scalefold.__version__, **made_with(device)}

    def run(self, targets: Sequence[Target], settle: Callable[[Outcome], None]) -> None:
        """Predict targets in this order; each is settled when its files are there."""
        pending: deque[Future[Outcome]] = deque()
        with ThreadPoolExecutor(1) as writer:
            for target, made in made_ahead(self._make, targets):
                outcome = self._predict(target, made, writer)
                if isinstance(outcome, Outcome):
                    settle(outcome)
                else:
                    pending.append(outcome)
                while pending and (pending[0].done() or len(pending) > _MOST_PENDING):
                    settle(pending.popleft().result())
            while pending:
                settle(pending.popleft().result())

    def _make(self, target: Target) -> _Ready | Outcome:
        """Features of a target, or its record if it was predicted before."""
        if target.length > self._max_length:
            raise InputError(
                f"{target.length} residues, more than evaluation.max_length ({self._max_length}); "
                "raise that (--set evaluation.max_length=…) if the device has the memory"
            )
        made_from = {"sequence": target.sequence, "alignment": target.alignment(), **self.settings}
        record = read_record(self._out, target, made_from)
        if record is not None:
            return Outcome(target.name, target.length, "there", record=record)
        query = target.read()
        aatype = torch.from_numpy(query.aatype).long()
        features = self._ensemble.features(query)
        return _Ready(made_from, aatype, query.msa.num_seq_full, features)

    def _predict(
        self, target: Target, made: Future[_Ready | Outcome], writer: ThreadPoolExecutor
    ) -> Outcome | Future[Outcome]:
        try:
            with memory_explained(target.length, self._device):
                ready = made.result()
                if isinstance(ready, Outcome):
                    return ready
                predictions = list(self._ensemble(ready.features))
        except (InputError, OSError) as error:  # OSError: an alignment that cannot be read
            return Outcome(target.name, target.length, "failed", str(error))
        for member, prediction in predictions:
            wrong = not_finite(prediction)
            if wrong is not None:
                reason = f"the {wrong} that {member.label} predicts are not finite"
                return Outcome(target.name, target.length, "failed", reason)

        def write() -> Outcome:
            measure, ranked = rank(predictions)
            record = write_target(
                self._out,
                target,
                ready.aatype,
                ready.alignment_rows,
                measure,
                ranked,
                ready.made_from,
                self._made_with,
            )
            return Outcome(target.name, target.length, "predicted", record=record)

        return writer.submit(write)


def _settings(member: Member, device: torch.device) -> dict[str, Any]:
    """What a member's prediction depends on besides its weights."""
    config, evaluation = member.config, member.config.evaluation
    features = config.features.model_dump(
        include={"max_msa_clusters", "max_extra_msa", "max_templates", "masked_msa"}, mode="json"
    )
    return {
        "label": member.label,
        "recycling": evaluation.recycling,
        "seed": evaluation.seed,
        "precision": choose_precision(config, device),
        **features,
    }


def _said(outcome: Outcome) -> str:
    if outcome.record is None:
        return outcome.fate
    best = outcome.record["models"][0]
    shown = f"pLDDT {best['mean_plddt']:.1f}"
    return shown if outcome.fate == "predicted" else f"predicted before, {shown}"
