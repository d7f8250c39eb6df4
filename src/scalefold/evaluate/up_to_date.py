"""Whether an evaluation is of the present checkpoint and settings.

The workflow asks before it does anything, so nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scalefold.config.schema import EvaluationConfig
from scalefold.errors import InputError


def is_evaluated(path: Path, mark: Path, settings: EvaluationConfig) -> bool:
    """Whether a checkpoint has an evaluation, not older than it and made with these settings.

    A damaged file counts as an evaluation: the report refuses it and names it.

    Parameters
    ----------
    mark : Path
        The checkpoint's ``.ready`` file.
    """
    try:
        is_newer = path.stat().st_mtime_ns >= mark.stat().st_mtime_ns
        return is_newer and not _differences(json.loads(path.read_text("utf-8")), settings)
    except FileNotFoundError:
        return False
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return True


def check_settings(evaluations: Iterable[Mapping[str, Any]], settings: EvaluationConfig) -> None:
    """Refuse evaluations that were made with other settings.

    Raises
    ------
    InputError
        Names the first step, both values and the fix.
    """
    for evaluation in evaluations:
        if differences := _differences(evaluation, settings):
            raise InputError(
                f"the evaluation of step {evaluation['step']} was made with other settings: "
                f"{'; '.join(differences)}. Set them back, or evaluate again: the workflow does so"
            )


def _differences(evaluation: Mapping[str, Any], settings: EvaluationConfig) -> list[str]:
    """Settings that differ, with both values."""
    now = settings.model_dump() | {"splits": sorted(settings.splits)}
    then = {
        key: evaluation.get(key, now[key])
        for key in ("recycling", "seed", "max_length", "precision")
        if key != "precision" or settings.precision != "auto"
    } | {"splits": sorted(evaluation["mean"])}
    return [
        f"evaluation.{key}: {value} there, {now[key]} now"
        for key, value in then.items()
        if value != now[key]
    ]
