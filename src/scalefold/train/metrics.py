"""The metrics log: one JSON object a logged step, and the same numbers for TensorBoard."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import operator
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from torch.utils.tensorboard import SummaryWriter

from scalefold.errors import InputError
from scalefold.io.atomic import write_bytes

logger = logging.getLogger(__name__)

METRICS_FILE: Final = "metrics.jsonl"
TENSORBOARD_FOLDER: Final = "tensorboard"

Record = dict[str, Any]


class MetricsLog:
    """Appends records to ``metrics.jsonl`` and TensorBoard's event file.

    Parameters
    ----------
    step : int
        Step that the run continues from. Later records are removed: they are from a run that was
        killed after its last checkpoint, and will be made again.

    Raises
    ------
    InputError
        From all but `close`, if the disk is full or the files cannot be written.
    """

    def __init__(self, out: Path, step: int) -> None:
        self._path = out / METRICS_FILE
        _truncate(self._path, step)
        self._file = self._path.open("a", encoding="utf-8")
        # A record has more numbers than TensorBoard's default queue of 10: steps would wait for
        # its thread.
        self._board = SummaryWriter(
            str(out / TENSORBOARD_FOLDER), purge_step=step + 1, max_queue=1000
        )

    def write(self, record: Record) -> None:
        """Append one record; NaN and infinity become null, and are left out of TensorBoard."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        with self._explained():
            self._file.write(json.dumps(finite, allow_nan=False) + "\n")
            self._file.flush()
            for key, value in finite.items():
                if isinstance(value, int | float) and key not in ("step", "time"):
                    self._board.add_scalar(key, value, record["step"], walltime=record.get("time"))

    def sync(self) -> None:
        """Bring everything to the disk: a checkpoint must not be ahead of its log."""
        with self._explained():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._board.flush()

    def close(self) -> None:
        """Close the files."""
        for file in (self._file, self._board):
            try:
                file.close()
            except OSError as error:  # whatever has ended the training is of more interest
                logger.warning("%s: not written to its end (%s)", self._path, error.strerror)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"{self._path}, or {TENSORBOARD_FOLDER}/ beside it: cannot be written "
                f"({error.strerror}). Make room and start again with --resume; the checkpoints are "
                "intact"
            ) from error


def _truncate(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept, dropped = [], 0
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
        try:
            of_step = operator.index(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError, RecursionError):
            logger.warning("%s, line %d: dropped, it was not written to its end", path, number)
            continue
        if of_step <= step:
            kept.append(line + "\n")
        else:
            dropped += 1
    if dropped:
        logger.info("%s: %d records after step %d removed", path, dropped, step)
    write_bytes(path, "".join(kept).encode())
