"""The target of a run: an evaluation that reaches it tells the training beside it to end.

The message is a file in the training's folder, written once and kept. It also says why the training
ended before its last step. It holds as long as the configuration asks for no more than it states,
so a training goes on when its target is raised or dropped.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from scalefold.config.schema import EvaluationConfig
from scalefold.errors import InputError
from scalefold.io.atomic import write_bytes

TARGET_FILE: Final = "target-reached.json"
_SECONDS_BETWEEN_LOOKS: Final = 1.0


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

    def write(self, training: Path) -> None:
        """Write the message into a training's folder, atomically."""
        write_bytes(training / TARGET_FILE, (json.dumps(asdict(self), indent=1) + "\n").encode())


_REACHED: Final = TypeAdapter(TargetReached)


def read_target(
    training: Path, evaluation: EvaluationConfig, data_manifest_sha256: str
) -> TargetReached | None:
    """Return the message in a training's folder if it means this configuration and these data.

    Raises
    ------
    InputError
        If the file is not such a message.
    """
    path = training / TARGET_FILE
    try:
        reached = _REACHED.validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        found = error.errors()[0]["msg"]
        raise InputError(f"{path}: not written by an evaluation ({found}): delete it") from None
    meant = (
        evaluation.target_lddt is not None
        and reached.lddt_ca >= evaluation.target_lddt
        and reached.split == evaluation.splits[0]
        and reached.data_manifest_sha256 == data_manifest_sha256
    )
    return reached if meant else None


class TargetWatch:
    """Looks for the message now and then, to spare the file system a question at every step."""

    def __init__(
        self, training: Path, evaluation: EvaluationConfig, data_manifest_sha256: str
    ) -> None:
        self._where = (training, evaluation, data_manifest_sha256)
        self._wanted = evaluation.target_lddt is not None
        self._next_look = -float("inf")
        self.reached: TargetReached | None = None

    def look(self) -> bool:
        """Say whether the target is reached."""
        now = time.monotonic()
        if self._wanted and self.reached is None and now >= self._next_look:
            self._next_look = now + _SECONDS_BETWEEN_LOOKS
            self.reached = read_target(*self._where)
        return self.reached is not None
