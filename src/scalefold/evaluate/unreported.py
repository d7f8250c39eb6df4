"""An evaluation that reached the target but could not be reported to the training.

Its job fails. A workflow deletes the declared files of a failed job and runs it again. The
evaluation is kept beside them, so the same command only has to report it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalefold.io.atomic import write_bytes

logger = logging.getLogger(__name__)


def keep_unreported(evaluation: Mapping[str, Any], out: Path) -> None:
    """Write an evaluation beside ``out``, its intended file."""
    write_bytes(_kept(out), json.dumps(evaluation, allow_nan=False).encode())


def read_unreported(
    out: Path, made_from: Mapping[str, Any], splits: Sequence[str]
) -> dict[str, Any] | None:
    """Return the evaluation that was kept for ``out``, if it is still valid.

    Parameters
    ----------
    made_from : mapping
        All that an evaluation depends on but its splits; they are among its fields.
    """
    try:
        kept: dict[str, Any] = json.loads(_kept(out).read_text("utf-8"))
        if {**kept, **made_from} != kept or list(kept["mean"]) != list(splits):
            return None
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, RecursionError):
        logger.warning("%s: damaged, so the checkpoint is evaluated again", _kept(out))
        return None
    logger.info("%s: evaluated before; only the report to its training is missing", _kept(out))
    return kept


def forget_unreported(out: Path) -> None:
    """Delete what is kept for ``out``: it was reported, or is outdated."""
    with contextlib.suppress(FileNotFoundError):
        _kept(out).unlink()


def _kept(out: Path) -> Path:
    return out.with_suffix(".unreported")
