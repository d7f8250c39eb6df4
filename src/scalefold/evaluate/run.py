"""Evaluate a checkpoint: predict every chain of some splits and compare with the truth.

The result is a function of the checkpoint, the shards and the configuration: random decisions
depend on ``evaluation.seed`` and the chain's key, chains come in the index's order, and nothing
that varies from run to run (times, host names) is written. So an evaluation may run at any time,
beside training or after it, and may be interrupted and started again.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch
from rich.console import Console

import scalefold
from scalefold.config.load import config_hash
from scalefold.config.schema import Config, EvaluationConfig
from scalefold.errors import InputError
from scalefold.evaluate.chain_scores import TRUTH, not_finite, score_chain
from scalefold.evaluate.prediction import (
    Prediction,
    averaged_weights,
    choose_precision,
    predictor,
)
from scalefold.evaluate.results import mean_by_split, write_evaluation
from scalefold.evaluate.structure_file import write_structure
from scalefold.features.contract import Features
from scalefold.features.pipeline import evaluation_features
from scalefold.model.confidence import plddt
from scalefold.progress import LiveLine
from scalefold.shards.atomic import make_folder
from scalefold.shards.reader import ShardReader
from scalefold.train.checkpoint import Metadata, read_metadata
from scalefold.train.provenance import data_hash
from scalefold.train.target import TargetReached

logger = logging.getLogger(__name__)

FORMAT: Final = 1
_EVALUATED_SPLITS: Final = ("train", "validation")
_SCORING_THREADS: Final = min(4, os.cpu_count() or 1)
_MOST_PENDING: Final = 16
"""Predictions that wait to be scored: bounds the memory they take."""

Fate = Literal["scored", "skipped", "failed"]


def evaluate_checkpoint(
    config: Config,
    checkpoint: Path,
    shards: Path,
    out: Path,
    splits: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    structures: Path | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Score a checkpoint's averaged weights on whole chains, and write the result.

    Parameters
    ----------
    config : Config
        Its ``model`` section must be the checkpoint's. Where ``evaluation.target_lddt`` is reached,
        a message is left for the training in the checkpoint's folder, see `scalefold.train.target`.
    checkpoint : Path
        Folder ``step-<8 digits>``.
    shards : Path
        What ``scalefold pack`` wrote.
    out : Path
        JSON file to write; a table of the chains is written beside it as ``.tsv``. Both appear
        whole or not at all.
    splits : sequence of str, optional
        ``train``, ``validation``; default ``evaluation.splits``.
    device : torch.device or str
    structures : Path, optional
        Folder to write the predicted structures to, ``<chain key>.cif``.
    console : Console, optional
        For the progress bar; default standard error.

    Returns
    -------
    dict
        What was written: ``step``, ``checkpoint`` and its hashes, ``mean`` and ``counts`` by split,
        ``chains``; ``skipped``, chains above ``evaluation.max_length``; ``failed``, chains whose
        data are bad, whose prediction was not finite, or for which memory did not suffice. Both
        lists have key, split and reason, and do not enter the means.

    Raises
    ------
    InputError
        Bad checkpoint, shards or split; an output folder that cannot be made; or not a single chain
        could be scored, in which case nothing is written. Some failed chains among others are
        recorded, not raised.
    """
    device = torch.device(device)
    chosen = _checked_splits(config.evaluation.splits if splits is None else splits)
    metadata = read_metadata(checkpoint)
    reader = ShardReader(shards)
    chains = _chains(reader, chosen, shards)
    weights = averaged_weights(checkpoint, metadata, config.model)
    # Before the work: a path that cannot be should not cost an evaluation.
    for folder in [out.parent] if structures is None else [out.parent, structures]:
        make_folder(folder)

    console = console or Console(stderr=True)
    with LiveLine(f"evaluating {checkpoint.name}:", len(chains), console) as progress:
        results = evaluate_chains(
            predictor(config, weights, device), reader, chains, config, device, structures, progress
        )
    scored, set_aside = results["scored"], {k: results[k] for k in ("skipped", "failed")}
    if not scored:
        first = [*set_aside["failed"], *set_aside["skipped"]][0]
        raise InputError(
            f"{checkpoint}: none of {len(chains)} chains could be scored; {first['chain_key']}: "
            f"{first['reason']}"
        )
    mean = mean_by_split(scored, chosen)
    evaluation = {
        "format": FORMAT,
        "step": metadata.step,
        "checkpoint": checkpoint.name,
        "weights": "averaged",
        "recycling": config.evaluation.recycling,
        "precision": choose_precision(config, device),
        "seed": config.evaluation.seed,
        "aggregation": "mean over chains",
        "checkpoint_config_hash": metadata.config_hash,
        "config_hash": config_hash(config),
        "data_manifest_sha256": data_hash(shards),
        "scalefold_version": scalefold.__version__,
        "torch_version": torch.__version__,
        "device": _device_name(device),
        "mean": mean,
        "counts": {
            split: {
                name: sum(chain["split"] == split for chain in members)
                for name, members in (("scored", scored), *set_aside.items())
            }
            for split in chosen
        },
        "chains": scored,
        **set_aside,
    }
    _tell_training(config.evaluation, checkpoint, metadata, mean)
    write_evaluation(evaluation, out)
    return evaluation


def _tell_training(
    config: EvaluationConfig,
    checkpoint: Path,
    metadata: Metadata,
    mean: dict[str, dict[str, float | None]],
) -> None:
    """End the training that the checkpoint belongs to if it has reached its target.

    Before the evaluation is written, since that says that all is done.
    """
    split = config.splits[0]
    value = mean.get(split, {}).get("lddt_ca")
    if config.target_lddt is not None and value is not None and value >= config.target_lddt:
        logger.info("mean lDDT-Cα of %s is %.3f: the target is reached", split, value)
        reached = TargetReached(metadata.step, split, value, metadata.data_manifest_sha256)
        reached.write(checkpoint.parent)


def evaluate_chains(
    predict: Callable[[Sequence[Features]], Prediction],
    reader: ShardReader,
    chains: Sequence[tuple[str, str, int]],
    config: Config,
    device: torch.device,
    structures: Path | None,
    progress: LiveLine,
) -> dict[str, list[dict[str, Any]]]:
    """Predict and score chains, the short ones first; scoring goes on beside the predictions.

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

    with ThreadPoolExecutor(_SCORING_THREADS) as pool:
        for key, _, length in sorted(chains, key=lambda chain: chain[2]):
            predicted = _predict_chain(predict, reader, config, key, length, device)
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


def _predict_chain(
    predict: Callable[[Sequence[Features]], Prediction],
    reader: ShardReader,
    config: Config,
    chain_key: str,
    length: int,
    device: torch.device,
) -> tuple[Prediction, Features] | _SetAside:
    """Predict one chain, or say why not; with features on the CPU that hold the truth."""
    settings = config.evaluation
    if length > settings.max_length:
        return _SetAside(
            "skipped",
            f"{length} residues, more than evaluation.max_length ({settings.max_length})",
        )
    try:
        passes = evaluation_features(
            reader.sample(chain_key),
            config.features,
            settings.seed,
            settings.recycling + 1,
            device,
        )
        prediction = predict(passes)
    except InputError as error:
        return _SetAside("failed", str(error))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return _SetAside(
            "failed",
            f"{length} residues need more memory than {_device_name(device)} has; use a larger "
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
            structures / f"{chain_key}.cif",
            chain_key,
            truth["aatype"],
            prediction.positions,
            prediction.position_mask > 0,
            plddt(prediction.plddt_logits.double()),
        )
    return score_chain(prediction, truth)


def _checked_splits(splits: Sequence[str]) -> list[str]:
    unknown = [split for split in splits if split not in _EVALUATED_SPLITS]
    if unknown or not splits:
        raise InputError(
            f"cannot evaluate splits {list(splits)}: choose from {', '.join(_EVALUATED_SPLITS)} "
            "(template chains have no alignment)"
        )
    return [split for split in _EVALUATED_SPLITS if split in splits]


def _chains(reader: ShardReader, splits: Sequence[str], shards: Path) -> list[tuple[str, str, int]]:
    """Key, split and length of the chains, by split and key."""
    columns = reader.index.select(["chain_key", "split", "length"]).to_pydict()
    rows = list(zip(*(columns[name] for name in ("chain_key", "split", "length")), strict=True))
    chains = [row for split in splits for row in rows if row[1] == split]
    if not chains:
        found = ", ".join(sorted({row[1] for row in rows})) or "none"
        raise InputError(
            f"{shards}: no chain in the splits {', '.join(splits)}; there are {found}. Set "
            "evaluation.splits, or pack chains of these splits"
        )
    return cast(list[tuple[str, str, int]], chains)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
