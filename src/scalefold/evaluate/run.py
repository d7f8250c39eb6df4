"""Evaluate weights: predict every chain of some splits and compare with the truth.

The result is a function of the weights, the shards and the configuration. Random numbers depend on
``evaluation.seed`` and the chain's key, chains come in the index's order, and nothing that varies
from run to run (times, host names) is written. So an evaluation may run at any time, during
training or after it, and may be interrupted and started again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import pyarrow.compute as pc
import torch
from rich.console import Console

import scalefold
from scalefold.checkpoint.early_stopping import TargetReached
from scalefold.checkpoint.provenance import device_name, source_commit
from scalefold.config.identity import config_hash
from scalefold.config.schema import Config, EvaluationConfig
from scalefold.errors import InputError
from scalefold.evaluate.chains import ChainToScore, Results, evaluate_chains, structure_path
from scalefold.evaluate.patience import stalled
from scalefold.evaluate.results import (
    mean_by_split,
    prepare_outputs,
    reached_target,
    write_evaluation,
)
from scalefold.evaluate.unreported import forget_unreported, keep_unreported, read_unreported
from scalefold.io.atomic import check_writable
from scalefold.io.case_collisions import check_case_collisions
from scalefold.predict.loaded_weights import LoadedWeights, read_weights
from scalefold.predict.predictor import choose_precision
from scalefold.predict.shared_chain import SharedPredictors
from scalefold.progress import LiveLine
from scalefold.shards.manifest import data_hash
from scalefold.shards.packed_settings import warn_of_other_settings
from scalefold.shards.reader import ShardReader

logger = logging.getLogger(__name__)

FORMAT: Final = 1
_EVALUATED_SPLITS: Final = ("train", "validation")


def evaluate_weights(
    config: Config,
    path: Path,
    shards: Path,
    out: Path,
    splits: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    structures: Path | None = None,
    console: Console | None = None,
    predictors: SharedPredictors | None = None,
) -> dict[str, Any]:
    """Score weights on whole chains, and write the result.

    Parameters
    ----------
    config : Config
        Its ``model`` section must be that of the weights. If ``evaluation.target_lddt`` is reached
        and no chain failed, or ``evaluation.patience`` evaluations in the folder of ``out`` have
        gained nothing, a message for the training is written to the checkpoint's folder, see
        `scalefold.checkpoint.early_stopping`.
    path : Path
        A checkpoint, folder ``step-<8 digits>``, whose averaged weights are taken; or a file of
        weights, see `read_weights`.
    out : Path
        JSON file to write; a table of the chains is written beside it as ``.tsv``. Both appear
        whole or not at all.
    splits : sequence of str, optional
        ``train``, ``validation``; default ``evaluation.splits``.
    device : torch.device or str
        A GPU must be torch's current one.
    structures : Path, optional
        Folder to write the predicted structures to, ``<chain key>.cif``.
    console : Console, optional
        For the progress bar; default standard error.
    predictors : SharedPredictors, optional
        If several processes share each chain, of which this is the first.

    Returns
    -------
    dict
        What was written: ``step`` (0 for a weight file), ``checkpoint`` (the name of folder or
        file), hashes, ``mean`` and ``counts`` by split, ``chains``; ``skipped``, chains above
        ``evaluation.max_length``; ``failed``, chains whose data are bad, whose prediction was not
        finite, or for which memory did not suffice. Both lists have key, split and reason, and do
        not enter the means; ``shown``, the structures of a few chains for the report, see
        `shown_chains`.

    Raises
    ------
    InputError
        Bad weights, shards or split; an output folder that cannot be made or written to, or that
        has one file for two chains (`check_case_collisions`); with a target, a run's folder
        that takes no files; or not a single chain could be scored, in which case nothing is
        written. Some failed chains among others are recorded, not raised. After all is written: the
        training's folder takes no message; then the same call again only leaves that.
    """
    device = torch.device(device)
    chosen = _checked_splits(config.evaluation.splits if splits is None else splits)
    loaded = read_weights(path, config.model)
    reader = ShardReader(shards)
    warn_of_other_settings(shards, config)
    chains = _chains(reader, chosen, shards)
    prepare_outputs(out, structures)
    settings = config.evaluation
    may_end = settings.target_lddt is not None or settings.patience is not None
    if may_end and loaded.checkpoint is not None:
        check_writable(
            path.parent,
            "evaluation.target_lddt and evaluation.patience, unless null, tell the training to end",
        )
    if structures is not None:
        check_case_collisions((structure_path(structures, key) for key, *_ in chains), structures)

    made_from = _made_from(config, loaded, shards, device)
    evaluation = read_unreported(out, made_from, chosen) if structures is None else None
    if evaluation is None:
        console = console or Console(stderr=True)
        with LiveLine(f"evaluating {path.name}:", len(chains), console) as progress:
            make = (predictors or SharedPredictors(device)).make
            predict = make(config, loaded.weights)
            results, shown = evaluate_chains(
                predict, reader, chains, config, device, structures, progress
            )
        evaluation = {**made_from, **_outcome(results, shown, path, chosen)}
    try:  # before the evaluation is written, since its file says that all is done
        _tell_training(settings, loaded, evaluation, out.parent)
    except InputError as error:
        keep_unreported(evaluation, out)
        write_evaluation(evaluation, out)
        raise InputError(
            f"{out} is written, but the training in {path.parent} could not be told to end: "
            f"{error} Then the same command tells it, and does not evaluate again. If no training "
            "is at work there, set evaluation.target_lddt and evaluation.patience to null"
        ) from error
    write_evaluation(evaluation, out)
    forget_unreported(out)
    return evaluation


def _outcome(
    results: Results, shown: list[dict[str, Any]], path: Path, splits: Sequence[str]
) -> dict[str, Any]:
    """The results of all chains, and the means of those that were scored."""
    if not results["scored"]:
        first = [*results["failed"], *results["skipped"]][0]
        fix = "" if results["failed"] else "; raise that to score them"
        raise InputError(
            f"{path}: none of {sum(map(len, results.values()))} chains could be scored; "
            f"{first['chain_key']}: {first['reason']}{fix}"
        )
    return {
        "mean": mean_by_split(results["scored"], splits),
        "counts": {
            split: {
                fate: sum(chain["split"] == split for chain in members)
                for fate, members in results.items()
            }
            for split in splits
        },
        "chains": results["scored"],
        "skipped": results["skipped"],
        "failed": results["failed"],
        "shown": shown,
    }


def _made_from(
    config: Config, loaded: LoadedWeights, shards: Path, device: torch.device
) -> dict[str, Any]:
    """What was evaluated, and with which settings."""
    checkpoint = loaded.checkpoint
    return {
        "format": FORMAT,
        "step": loaded.step,
        "checkpoint": loaded.path.name,
        "weights": "file" if checkpoint is None else "averaged",
        "weights_sha256": loaded.weights_sha256,
        "recycling": config.evaluation.recycling,
        "precision": choose_precision(config, device),
        "seed": config.evaluation.seed,
        "max_length": config.evaluation.max_length,
        "aggregation": "mean over chains",
        "checkpoint_config_hash": checkpoint and checkpoint.config_hash,
        "config_hash": config_hash(config),
        "data_manifest_sha256": data_hash(shards),
        "scalefold_version": scalefold.__version__,
        "commit": source_commit(),
        "torch_version": torch.__version__,
        "device": device_name(device),
    }


def _tell_training(
    settings: EvaluationConfig, loaded: LoadedWeights, evaluation: dict[str, Any], folder: Path
) -> None:
    """End the training of a checkpoint at its target, or if the evaluations in a folder say so."""
    if loaded.checkpoint is None:
        return
    training = loaded.path.parent
    value = reached_target(evaluation, settings)
    if value is not None:
        data = loaded.checkpoint.data_manifest_sha256
        reached = TargetReached(loaded.step, settings.splits[0], value, data)
        logger.info("%s", reached)
        reached.write(training)
    no_gain = stalled(evaluation, training, folder, settings)
    if no_gain is not None:
        logger.info("%s", no_gain)
        no_gain.write(training)


def _checked_splits(splits: Sequence[str]) -> list[str]:
    unknown = [split for split in splits if split not in _EVALUATED_SPLITS]
    if unknown or not splits:
        raise InputError(
            f"cannot evaluate splits {list(splits)}: choose from {', '.join(_EVALUATED_SPLITS)} "
            "(template chains have no alignment)"
        )
    return [split for split in _EVALUATED_SPLITS if split in splits]


def _chains(reader: ShardReader, splits: Sequence[str], shards: Path) -> list[ChainToScore]:
    """Key, split and length of the experimental chains, by split and key."""
    index = reader.index.filter(pc.equal(reader.index["origin"], "experimental"))
    columns = index.select(["chain_key", "split", "length"]).to_pydict()
    rows = list(zip(*(columns[name] for name in ("chain_key", "split", "length")), strict=True))
    chains = [row for split in splits for row in rows if row[1] == split]
    if not chains:
        found = ", ".join(sorted({row[1] for row in rows})) or "none"
        raise InputError(
            f"{shards}: no chain in the splits {', '.join(splits)}; there are {found}. Set "
            "evaluation.splits, or pack chains of these splits"
        )
    return cast(list[ChainToScore], chains)
