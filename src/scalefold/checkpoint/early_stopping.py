"""An evaluation tells the training beside it to end: at its target, or once nothing is gained.

Each message is a file in the training's folder, written once and kept. It also says why the
training ended before its last step. It holds as long as the configuration asks for no more than it
states, so a training run goes on when its target or its patience is raised or dropped.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from scalefold.config.schema import EvaluationConfig
from scalefold.errors import InputError
from scalefold.io.atomic import write_bytes

_SECONDS_BETWEEN_LOOKS: Final = 1.0


class _Message:
    file: ClassVar[str]

    def write(self, training: Path) -> None:
        """Write the message into a training run's folder, atomically."""
        text = json.dumps(asdict(cast(Any, self)), indent=1)
        write_bytes(training / self.file, f"{text}\n".encode())


@dataclass(frozen=True)
class TargetReached(_Message):
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

    file = "target-reached.json"
    step: int
    split: str
    lddt_ca: FiniteFloat
    data_manifest_sha256: str

    def suffices(self, evaluation: EvaluationConfig) -> bool:
        """Whether it is what the settings ask for."""
        return evaluation.target_lddt is not None and self.lddt_ca >= evaluation.target_lddt

    def __str__(self) -> str:
        """Say it to a user."""
        return (
            f"target reached: mean lDDT-Cα of {self.split} {self.lddt_ca:.3f} at step {self.step}"
        )


@dataclass(frozen=True)
class Stalled(_Message):
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

    file = "no-gain.json"
    step: int
    split: str
    best_step: int
    evaluations: int
    data_manifest_sha256: str

    def suffices(self, evaluation: EvaluationConfig) -> bool:
        """Whether it is what the settings ask for."""
        return evaluation.patience is not None and self.evaluations >= evaluation.patience

    def __str__(self) -> str:
        """Say it to a user."""
        return (
            f"no gain: mean lDDT-Cα of {self.split} is best at step {self.best_step}, "
            f"{self.evaluations} evaluations ago"
        )


_KINDS: Final[dict[str, TypeAdapter[Any]]] = {
    kind.file: TypeAdapter(kind) for kind in (TargetReached, Stalled)
}


def read_end(
    training: Path, evaluation: EvaluationConfig, data_manifest_sha256: str
) -> TargetReached | Stalled | None:
    """Return why a training run is to end if a message in its folder means these settings and data.

    Raises
    ------
    InputError
        If a file is not such a message.
    """
    for file, kind in _KINDS.items():
        try:
            found: TargetReached | Stalled = kind.validate_json(
                (training / file).read_bytes(), strict=True
            )
        except FileNotFoundError:
            continue
        except ValidationError as error:
            raise InputError(
                f"{training / file}: not written by an evaluation ({error.errors()[0]['msg']}): "
                "delete it"
            ) from None
        meant = (found.split, found.data_manifest_sha256)
        if meant == (evaluation.splits[0], data_manifest_sha256) and found.suffices(evaluation):
            return found
    return None


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
