"""An evaluation tells the training beside it to end: at its target, or once nothing is gained.

Each message is a file in the training's folder, written once and kept. It also says why the
training ended before its last step. It holds as long as the configuration asks for no more than it
states, so a training goes on when its target or its patience is raised or dropped.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeVar

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from scalefold.config.schema import EvaluationConfig
from scalefold.errors import InputError
from scalefold.io.atomic import write_bytes

TARGET_FILE: Final = "target-reached.json"
STALLED_FILE: Final = "no-gain.json"
_SECONDS_BETWEEN_LOOKS: Final = 1.0
_Message = TypeVar("_Message")


@dataclass(frozen=True)
class TargetReached:
    """An evaluation that met ``evaluation.target_lddt``.

    Attributes
    ----------
    step : int
        Of the evaluated checkpoint.
    split : str
        Whose chains were averaged over: the first of ``evaluation.splits``.
    lddt_ca : float
        Their mean lDDT-Ca, 0 to 1.
    data_manifest_sha256 : str
        Data that the checkpoint was trained on.
    """

    step: int
    split: str
    lddt_ca: FiniteFloat
    data_manifest_sha256: str

    def __str__(self) -> str:
        """Say it to a user."""
        return (
            f"target reached: mean lDDT-Cα of {self.split} {self.lddt_ca:.3f} at step {self.step}"
        )

    def write(self, training: Path) -> None:
        """Write the message into a training's folder, atomically."""
        _write(self, training / TARGET_FILE)


@dataclass(frozen=True)
class Stalled:
    """Evaluations without a gain, as many as ``evaluation.patience``.

    Attributes
    ----------
    step : int
        Of the last of them.
    split : str
        Whose chains were averaged over: the first of ``evaluation.splits``.
    best_step : int
        Of the checkpoint whose mean lDDT-Ca is the highest.
    evaluations : int
        Made since, of later steps.
    data_manifest_sha256 : str
        Data that the checkpoints were trained on.
    """

    step: int
    split: str
    best_step: int
    evaluations: int
    data_manifest_sha256: str

    def __str__(self) -> str:
        """Say it to a user."""
        return (
            f"no gain: mean lDDT-Cα of {self.split} is best at step {self.best_step}, "
            f"{self.evaluations} evaluations ago"
        )

    def write(self, training: Path) -> None:
        """Write the message into a training's folder, atomically."""
        _write(self, training / STALLED_FILE)


_REACHED: Final = TypeAdapter(TargetReached)
_STALLED: Final = TypeAdapter(Stalled)


def read_target(
    training: Path, evaluation: EvaluationConfig, data_manifest_sha256: str
) -> TargetReached | None:
    """Return the target's message if it means this configuration and these data.

    Raises
    ------
    InputError
        If the file is not such a message.
    """
    reached = _read(training / TARGET_FILE, _REACHED)
    meant = (
        reached is not None
        and evaluation.target_lddt is not None
        and reached.lddt_ca >= evaluation.target_lddt
        and reached.split == evaluation.splits[0]
        and reached.data_manifest_sha256 == data_manifest_sha256
    )
    return reached if meant else None


def read_end(
    training: Path, evaluation: EvaluationConfig, data_manifest_sha256: str
) -> TargetReached | Stalled | None:
    """Return why a training is to end if a message in its folder means these settings and data.

    Raises
    ------
    InputError
        If a file is not such a message.
    """
    reached = read_target(training, evaluation, data_manifest_sha256)
    if reached is not None:
        return reached
    stalled = _read(training / STALLED_FILE, _STALLED)
    meant = (
        stalled is not None
        and evaluation.patience is not None
        and stalled.evaluations >= evaluation.patience
        and stalled.split == evaluation.splits[0]
        and stalled.data_manifest_sha256 == data_manifest_sha256
    )
    return stalled if meant else None


def _write(message: TargetReached | Stalled, path: Path) -> None:
    write_bytes(path, (json.dumps(asdict(message), indent=1) + "\n").encode())


def _read(path: Path, message: TypeAdapter[_Message]) -> _Message | None:
    try:
        return message.validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        found = error.errors()[0]["msg"]
        raise InputError(f"{path}: not written by an evaluation ({found}): delete it") from None


class EndWatch:
    """Looks for the messages now and then, to spare the file system a question at every step."""

    def __init__(
        self, training: Path, evaluation: EvaluationConfig, data_manifest_sha256: str
    ) -> None:
        self._where = (training, evaluation, data_manifest_sha256)
        self._wanted = evaluation.target_lddt is not None or evaluation.patience is not None
        self._next_look = -float("inf")
        self.end: TargetReached | Stalled | None = None

    def look(self) -> bool:
        """Say whether the training is to end."""
        now = time.monotonic()
        if self._wanted and self.end is None and now >= self._next_look:
            self._next_look = now + _SECONDS_BETWEEN_LOOKS
            self.end = read_end(*self._where)
        return self.end is not None
