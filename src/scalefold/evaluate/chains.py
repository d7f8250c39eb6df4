"""Predict and score many chains: features, model and scores work side by side."""

from __future__ import annotations

import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch

from scalefold.checkpoint.provenance import device_name
from scalefold.config.schema import Config
from scalefold.errors import InputError, UnreadableError
from scalefold.evaluate.chain_scores import TRUTH, not_finite, score_chain
from scalefold.evaluate.prediction import Prediction
from scalefold.evaluate.structure_file import structure_path, write_structure
from scalefold.features.contract import Features
from scalefold.features.pipeline import evaluation_features
from scalefold.model.confidence import plddt
from scalefold.progress import LiveLine
from scalefold.shards.reader import ShardReader

logger = logging.getLogger(__name__)

_SCORING_THREADS: Final = min(4, os.cpu_count() or 1)
_MOST_PENDING: Final = 16
"""Predictions that wait to be scored: bounds the memory they take."""

Fate = Literal["scored", "skipped", "failed"]
Chain = tuple[str, str, int]
"""Key, split, length."""


def evaluate_chains(
    predict: Callable[[Sequence[Features]], Prediction],
    reader: ShardReader,
    chains: Sequence[Chain],
    config: Config,
    device: torch.device,
    structures: Path | None,
    progress: LiveLine,
) -> dict[str, list[dict[str, Any]]]:
    """Predict and score chains, the short ones first.

    While the model works, the features of the next chain are made and earlier predictions are
    scored.

    Parameters
    ----------
    predict : callable
        A `Predictor`.
    reader : ShardReader
    chains : sequence of (key, split, length)
    config : Config
    device : torch.device
        Where features are made.
    structures : Path or None
        Folder for the predicted structures.
    progress : LiveLine
        Counts the chains.

    Returns
    -------
    dict
        Records of ``scored``, ``skipped`` and ``failed`` chains, each in the order of ``chains``.
    """
    fates: dict[str, tuple[Fate, dict[str, Any]]] = {}
    pending: deque[tuple[str, Future[dict[str, Any]]]] = deque()

    def settle(key: str, fate: Fate, result: dict[str, Any]) -> None:
        fates[key] = fate, result
        if fate == "scored":
            value = result["lddt_ca"]
            said = "lDDT-Cα " + ("undefined" if value is None else f"{value:.3f}")
        else:
            logger.warning("%s %s: %s", key, fate, result["reason"])
            said = fate
        progress.show(len(fates), f"{key}: {said}")

    by_length = sorted(chains, key=lambda chain: chain[2])
    make = functools.partial(_make_features, reader, config, device)
    with ThreadPoolExecutor(_SCORING_THREADS) as pool:
        for (key, _, length), features in _made_ahead(make, by_length):
            predicted = _predict_chain(predict, features, length, device)
            if isinstance(predicted, _SetAside):
                settle(key, predicted.fate, {"reason": predicted.reason})
            else:
                pending.append((key, pool.submit(_score, key, *predicted, structures)))
            while pending and (pending[0][1].done() or len(pending) > _MOST_PENDING):
                done, future = pending.popleft()
                settle(done, "scored", future.result())
        while pending:
            done, future = pending.popleft()
            settle(done, "scored", future.result())
    results: dict[str, list[dict[str, Any]]] = {"scored": [], "skipped": [], "failed": []}
    for key, split, length in chains:
        fate, result = fates[key]
        results[fate].append({"chain_key": key, "split": split, "length": length, **result})
    return results


@dataclass(frozen=True)
class _SetAside:
    fate: Literal["skipped", "failed"]
    reason: str


def _made_ahead(
    make: Callable[[Chain], list[Features] | _SetAside], chains: Iterable[Chain]
) -> Iterator[tuple[Chain, Future[list[Features] | _SetAside]]]:
    """Features of each chain; those of the next one are made meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        before: tuple[Chain, Future[list[Features] | _SetAside]] | None = None
        for chain in chains:
            coming = chain, pool.submit(make, chain)
            if before is not None:
                yield before
            before = coming
        if before is not None:
            yield before


def _make_features(
    reader: ShardReader, config: Config, device: torch.device, chain: Chain
) -> list[Features] | _SetAside:
    """Features of all passes of a chain, ready on the device, or why it is skipped."""
    settings, (chain_key, _, length) = config.evaluation, chain
    if length > settings.max_length:
        return _SetAside(
            "skipped",
            f"{length} residues, more than evaluation.max_length ({settings.max_length})",
        )
    sample, passes = reader.sample(chain_key), settings.recycling + 1
    if device.type != "cuda":
        return evaluation_features(sample, config.features, settings.seed, passes, device)
    # On a stream of its own, beside the model's work, and finished when it is handed over.
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        features = evaluation_features(sample, config.features, settings.seed, passes, device)
    stream.synchronize()
    return features


def _predict_chain(
    predict: Callable[[Sequence[Features]], Prediction],
    features: Future[list[Features] | _SetAside],
    length: int,
    device: torch.device,
) -> tuple[Prediction, Features] | _SetAside:
    """Predict one chain, or return why not. The features on the CPU hold the true structure."""
    try:
        passes = features.result()
        if isinstance(passes, _SetAside):
            return passes
        prediction = predict(passes)
    except UnreadableError:  # A whole file may not be read: its owner can mend that.
        raise
    except InputError as error:
        return _SetAside("failed", str(error))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return _SetAside(
            "failed",
            f"{length} residues need more memory than {device_name(device)} has; use a larger "
            "device or lower evaluation.max_length",
        )
    wrong = not_finite(prediction)
    if wrong is not None:
        return _SetAside("failed", f"the predicted {wrong} are not finite")
    return prediction, {name: passes[-1][name][0].cpu() for name in TRUTH}


def _score(
    chain_key: str, prediction: Prediction, truth: Features, structures: Path | None
) -> dict[str, Any]:
    if structures is not None:
        write_structure(
            structure_path(structures, chain_key),
            chain_key,
            truth["aatype"],
            prediction.positions,
            prediction.position_mask > 0,
            plddt(prediction.plddt_logits.double()),
        )
    return score_chain(prediction, truth)
