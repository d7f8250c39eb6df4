"""Evaluate a checkpoint: predict every chain of some splits and compare with the truth.

The result is a function of the checkpoint, the shards and the configuration: random decisions
depend on ``evaluation.seed`` and the chain's key, chains come in the index's order, and nothing
that varies from run to run (times, host names) is written. So an evaluation may run at any time,
beside training or after it, and may be interrupted and started again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch
from rich.console import Console

import scalefold
from scalefold.config.load import config_hash
from scalefold.config.schema import Config, EvaluationConfig
from scalefold.errors import InputError
from scalefold.evaluate.chain_scores import not_finite, score_chain
from scalefold.evaluate.prediction import load_model, predict
from scalefold.evaluate.results import mean_by_split, write_evaluation
from scalefold.evaluate.structure_file import write_structure
from scalefold.features.pipeline import evaluation_features
from scalefold.model import AlphaFold
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
    model = load_model(checkpoint, metadata, config.model, device)
    # Before the work: a path that cannot be should not cost an evaluation.
    for folder in [out.parent] if structures is None else [out.parent, structures]:
        make_folder(folder)

    scored: list[dict[str, Any]] = []
    set_aside: dict[str, list[dict[str, Any]]] = {"skipped": [], "failed": []}
    console = console or Console(stderr=True)
    with LiveLine(f"evaluating {checkpoint.name}:", len(chains), console) as progress:
        for done, (chain_key, split, length) in enumerate(chains, 1):
            fate, result = _evaluate_chain(
                model, reader, config, chain_key, length, device, structures
            )
            record = {"chain_key": chain_key, "split": split, "length": length, **result}
            if fate == "scored":
                scored.append(record)
                value = record["lddt_ca"]
                said = "lDDT-Cα " + ("undefined" if value is None else f"{value:.3f}")
            else:
                set_aside[fate].append(record)
                logger.warning("%s %s: %s", chain_key, fate, record["reason"])
                said = fate
            progress.show(done, f"{chain_key}: {said}")

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


def _evaluate_chain(
    model: AlphaFold,
    reader: ShardReader,
    config: Config,
    chain_key: str,
    length: int,
    device: torch.device,
    structures: Path | None,
) -> tuple[Literal["scored", "skipped", "failed"], dict[str, Any]]:
    """Predict and score one chain, or say why not."""
    settings = config.evaluation
    if length > settings.max_length:
        return "skipped", {
            "reason": f"{length} residues, more than evaluation.max_length ({settings.max_length})"
        }
    try:
        passes = evaluation_features(
            reader.sample(chain_key),
            config.features,
            settings.seed,
            settings.recycling + 1,
            device,
        )
        outputs = predict(model, passes, config.model)
    except InputError as error:
        return "failed", {"reason": str(error)}
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return "failed", {
            "reason": f"{length} residues need more memory than {_device_name(device)} has; use a "
            "larger device or lower evaluation.max_length"
        }
    wrong = not_finite(outputs)
    if wrong is not None:
        return "failed", {"reason": f"the predicted {wrong} are not finite"}
    if structures is not None:
        write_structure(
            structures / f"{chain_key}.cif",
            chain_key,
            passes[-1]["aatype"][0].cpu(),
            outputs.positions[0].cpu(),
            outputs.position_mask[0].cpu() > 0,
            plddt(outputs.plddt_logits[0].cpu().double()),
        )
    return "scored", score_chain(outputs, passes[-1])


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
