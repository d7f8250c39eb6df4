"""Predict and score many chains: features, model and scores work side by side."""

from __future__ import annotations

import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import torch

from scalefold.config.schema import Config
from scalefold.errors import InputError, UnreadableError
from scalefold.evaluate.chain_scores import compare, score_chain
from scalefold.evaluate.pae_calibration import pae_bins
from scalefold.evaluate.shown_structures import Backbones, backbones, shown_chains
from scalefold.features.contract import Features
from scalefold.features.query import Query
from scalefold.features.targets import check_observed
from scalefold.io.atomic import write_bytes
from scalefold.model.confidence import plddt
from scalefold.predict.features_ahead import made_ahead, ready_features
from scalefold.predict.model_cif import model_cif
from scalefold.predict.predictor import Prediction, memory_explained, not_finite
from scalefold.progress import LiveLine
from scalefold.shards.reader import ShardReader
from scalefold.shards.records import ChainRecord

logger = logging.getLogger(__name__)

_SCORING_THREADS: Final = min(4, os.cpu_count() or 1)
_MOST_PENDING: Final = 16
"""Predictions that wait to be scored: bounds the memory they take."""

Fate = Literal["scored", "skipped", "failed"]
ChainToScore = tuple[str, str, int]
"""Key, split, length."""
Results = dict[str, list[dict[str, Any]]]
Scored = tuple[dict[str, Any], Backbones]


def structure_path(folder: Path, chain_key: str) -> Path:
    """Where a chain's predicted structure is written."""
    return folder / f"{chain_key}.cif"


class _Made(NamedTuple):
    """Features of all passes of a chain, its true structure, and facts for its record."""

    passes: list[Features]
    chain: ChainRecord
    facts: dict[str, Any]


@dataclass(frozen=True)
class _SetAside:
    fate: Literal["skipped", "failed"]
    reason: str


def evaluate_chains(
    predict: Callable[[Sequence[Features]], Prediction],
    reader: ShardReader,
    chains: Sequence[ChainToScore],
    config: Config,
    device: torch.device,
    structures: Path | None,
    progress: LiveLine,
) -> tuple[Results, list[dict[str, Any]]]:
    """Predict and score chains, the short ones first.

    While the model works, the features of the next chain are made and earlier predictions are
    scored.

    Parameters
    ----------
    chains : sequence of (key, split, length)
    device : torch.device
        Where features are made.

    Returns
    -------
    results : dict
        Records of ``scored``, ``skipped`` and ``failed`` chains, each in the order of ``chains``.
    shown : list of dict
        See `shown_chains`.
    """
    fates: dict[str, tuple[Fate, dict[str, Any]]] = {}
    kept: dict[str, Backbones] = {}
    pending: deque[tuple[str, Future[Scored]]] = deque()

    def settle(key: str, fate: Fate, result: dict[str, Any]) -> None:
        fates[key] = fate, result
        if fate == "scored":
            value = result["lddt_ca"]
            said = "lDDT-Cα " + ("undefined" if value is None else f"{value:.3f}")
        else:
            logger.warning("%s %s: %s", key, fate, result["reason"])
            said = fate
        progress.show(len(fates), f"{key}: {said}")

    def settle_first() -> None:
        key, future = pending.popleft()
        result, kept[key] = future.result()
        settle(key, "scored", result)

    by_length = sorted(chains, key=lambda chain: chain[2])
    make = functools.partial(_make_features, reader, config, device)
    with ThreadPoolExecutor(_SCORING_THREADS) as pool:
        for (key, _, length), made in made_ahead(make, by_length):
            predicted = _predict_chain(predict, made, length, device)
            if isinstance(predicted, _SetAside):
                settle(key, predicted.fate, {"reason": predicted.reason})
            else:
                pending.append((key, pool.submit(_score, key, *predicted, structures)))
            while pending and (pending[0][1].done() or len(pending) > _MOST_PENDING):
                settle_first()
        while pending:
            settle_first()
    results: Results = {"scored": [], "skipped": [], "failed": []}
    for key, split, length in chains:
        fate, result = fates[key]
        results[fate].append({"chain_key": key, "split": split, "length": length, **result})
    return results, shown_chains(results["scored"], kept)


def _make_features(
    reader: ShardReader, config: Config, device: torch.device, chain: ChainToScore
) -> _Made | _SetAside:
    """Features of all passes of a chain, ready on the device, or why it is skipped."""
    settings, (chain_key, _, length) = config.evaluation, chain
    if length > settings.max_length:
        return _SetAside(
            "skipped", f"{length} residues, more than evaluation.max_length ({settings.max_length})"
        )
    sample = reader.sample(chain_key)
    check_observed(sample.chain)
    date = sample.chain.release_date
    facts = {"alignment_rows": sample.msa.num_seq_full, "release_date": date and date.isoformat()}
    features = ready_features(Query.of(sample), config, device)
    return _Made(features, sample.chain, facts)


def _predict_chain(
    predict: Callable[[Sequence[Features]], Prediction],
    made: Future[_Made | _SetAside],
    length: int,
    device: torch.device,
) -> tuple[Prediction, ChainRecord, dict[str, Any]] | _SetAside:
    """Predict one chain, or return why not."""
    try:
        with memory_explained(length, device):
            ready = made.result()
            if isinstance(ready, _SetAside):
                return ready
            prediction = predict(ready.passes)
    except UnreadableError:  # A whole file may not be read: its owner can fix that.
        raise
    except InputError as error:
        return _SetAside("failed", str(error))
    wrong = not_finite(prediction)
    if wrong is not None:
        return _SetAside("failed", f"the predicted {wrong} are not finite")
    return prediction, ready.chain, ready.facts


def _score(
    chain_key: str,
    prediction: Prediction,
    chain: ChainRecord,
    facts: dict[str, Any],
    structures: Path | None,
) -> Scored:
    comparison = compare(prediction, chain)
    if structures is not None:
        text = model_cif(
            chain_key,
            comparison.aatype,
            prediction.positions,
            prediction.position_mask > 0,
            plddt(prediction.plddt_logits.double()),
        )
        write_bytes(structure_path(structures, chain_key), text.encode())
    kept = backbones(comparison, prediction.maps)
    scores = {**facts, **score_chain(prediction, comparison)}
    errors = pae_bins(kept)
    return scores if errors is None else {**scores, "pae_bins": errors}, kept
