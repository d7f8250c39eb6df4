"""Whether evaluations have stopped improving: then training ends before its last step."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scalefold.checkpoint.early_stopping import Stalled
from scalefold.checkpoint.read import AVERAGED_FILE, checkpoint_path, read_metadata
from scalefold.config.schema import EvaluationConfig
from scalefold.errors import InputError

logger = logging.getLogger(__name__)

_MUST_MATCH: Final = ("recycling", "precision", "seed", "max_length", "data_manifest_sha256")
"""Evaluations are compared only if these fields agree."""


def stalled(
    evaluation: Mapping[str, Any], training: Path, folder: Path, settings: EvaluationConfig
) -> Stalled | None:
    """Return a message for a training run if the last `patience` evaluations gained nothing.

    The evaluations are compared by their mean lDDT-Ca over the chains that all of them have scored.

    Parameters
    ----------
    evaluation : mapping
        The newest, see `evaluate_weights`.
    training : Path
        The training's folder. Evaluations of checkpoints that it does not hold do not count.
    folder : Path
        Holds the other evaluations, ``step-<8 digits>.json``. Those of later steps do not count.
    """
    if settings.patience is None:
        return None
    split = settings.splits[0]
    scores = {evaluation["step"]: _scores(evaluation, split)}
    for path in folder.glob("step-*.json"):
        try:
            earlier = json.loads(path.read_text("utf-8"))
            if earlier["step"] < evaluation["step"] and _is_comparable(
                earlier, evaluation, training
            ):
                scores[earlier["step"]] = _scores(earlier, split)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            logger.warning("%s: damaged, so it does not count: evaluate its checkpoint again", path)
    common = set.intersection(*map(set, scores.values()))
    if not common:
        return None
    means = {step: sum(found[key] for key in common) for step, found in sorted(scores.items())}
    best = max(means, key=means.__getitem__)  # the first of equals
    since = sum(step > best for step in means)
    if since < settings.patience:
        return None
    return Stalled(evaluation["step"], split, best, since, evaluation["data_manifest_sha256"])


def _scores(evaluation: Mapping[str, Any], split: str) -> dict[str, float]:
    """The lDDT-Ca of a split's chains, of those that have one."""
    return {
        chain["chain_key"]: chain["lddt_ca"]
        for chain in evaluation["chains"]
        if chain["split"] == split and chain["lddt_ca"] is not None
    }


def _is_comparable(
    earlier: Mapping[str, Any], evaluation: Mapping[str, Any], training: Path
) -> bool:
    """Whether it was made with the same settings, of weights that the training still has."""
    if any(earlier[field] != evaluation[field] for field in _MUST_MATCH):
        return False
    try:
        metadata = read_metadata(checkpoint_path(training, earlier["step"]))
    except (OSError, InputError):
        return False
    return bool(metadata.files[AVERAGED_FILE].sha256 == earlier["weights_sha256"])
