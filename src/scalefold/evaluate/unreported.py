"""An evaluation of which its training could not be told: kept, so that nobody makes it again.

The job failed, and a workflow deletes what a failed job declares and starts it anew. The same
command then finds the evaluation here and only has to tell.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalefold.shards.atomic import write_bytes

logger = logging.getLogger(__name__)


def keep_untold(evaluation: Mapping[str, Any], out: Path) -> None:
    """Write an evaluation beside ``out``, the file that it is for."""
    write_bytes(_kept(out), json.dumps(evaluation, allow_nan=False).encode())


def untold(out: Path, made_from: Mapping[str, Any], splits: Sequence[str]) -> dict[str, Any] | None:
    """Return the evaluation that was kept for ``out``, if it is what would be made now.

    Parameters
    ----------
    out : Path
    made_from : mapping
        All that an evaluation depends on but its splits; they are among its fields.
    splits : sequence of str
    """
    try:
        kept: dict[str, Any] = json.loads(_kept(out).read_text("utf-8"))
    except FileNotFoundError:
        return None
    if {**kept, **made_from} != kept or list(kept["mean"]) != list(splits):
        return None
    logger.info("%s: evaluated before, only its training is still to be told", _kept(out))
    return kept


def forget_untold(out: Path) -> None:
    """Delete what is kept for ``out``: it is told, or of no use any more."""
    with contextlib.suppress(FileNotFoundError):
        _kept(out).unlink()


def _kept(out: Path) -> Path:
    return out.with_suffix(".untold")
