"""Read checkpoints: folders that are there whole or not at all, and say what they are.

``step-<8 digits>/`` holds ``weights.pt`` and ``averaged.pt`` (state dictionaries, float32, readable
by ``torch.load(weights_only=True)`` and by OpenFold), ``training.pt`` (what else the next step
depends on) and ``checkpoint.json`` (what it is, with the hash of each file). The mark
``step-<8 digits>.ready`` beside it comes last and holds the hash of ``checkpoint.json``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch
from pydantic import ConfigDict, TypeAdapter, with_config

from scalefold.errors import ChecksumError, InputError
from scalefold.io.atomic import file_sha256
from scalefold.weights.matching import State

logger = logging.getLogger(__name__)

FORMAT: Final = 1
METADATA_FILE: Final = "checkpoint.json"
AVERAGED_FILE: Final = "averaged.pt"
_NAME: Final = re.compile(r"step-(\d{8})")
_READY: Final = ".ready"


@dataclass(frozen=True)
class FileFacts:
    """Size and SHA-256 of a file."""

    bytes: int
    sha256: str


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class FormerData:
    """Shards that a run was trained on before: until which step, and the hash of their manifest."""

    until_step: int
    data_manifest_sha256: str


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Metadata:
    """``checkpoint.json``.

    Attributes
    ----------
    format : int
        Version of the layout.
    step : int
        Training steps made; 0 is the untrained model.
    commit : str or None
        Commit of the source checkout, where there is one.
    initial_weights_sha256 : str or None
        Hash of the weights that the run started from; None for random ones, and in checkpoints of
        versions that did not record it.
    former_data : list of FormerData
        Earlier shards of the run, where `training.accept_new_data` let it go on with others.
    """

    format: int
    step: int
    config: dict[str, Any]
    config_hash: str
    data_manifest_sha256: str
    scalefold_version: str
    commit: str | None
    files: dict[str, FileFacts]
    initial_weights_sha256: str | None = None
    former_data: list[FormerData] = field(default_factory=list)


_METADATA: Final = TypeAdapter(Metadata)


def checkpoint_path(folder: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return folder / f"step-{step:08d}"


def ready_mark(checkpoint: Path) -> Path:
    """The mark that says that a checkpoint is complete."""
    return checkpoint.with_name(checkpoint.name + _READY)


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first; others are ignored with a line in the log."""
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or not path.name.startswith("step-"):
            continue
        if _NAME.fullmatch(path.name) and ready_mark(path).exists():
            found.append(path)
        else:
            logger.warning("%s: ignored, it is incomplete", path)
    return found


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint, if there is one."""
    found = checkpoints(folder)
    return found[-1] if found else None


def check_is_training(folder: Path) -> None:
    """Refuse a checkpoint where the folder of a training run is meant.

    Raises
    ------
    InputError
        It is a checkpoint.
    """
    if (folder / METADATA_FILE).is_file():
        raise InputError(
            f"{folder}: is a checkpoint. Give the folder of its training run, {folder.parent}"
        )


def read_metadata(checkpoint: Path) -> Metadata:
    """Read and check what a checkpoint says of itself.

    Raises
    ------
    InputError
        If the folder or its description is missing, not valid, or of another format.
    ChecksumError
        If the description is not the one that the mark vouches for.
    """
    path = checkpoint / METADATA_FILE
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{checkpoint}: no checkpoint here ({METADATA_FILE} is missing); give the folder "
            "step-<number> of a run's weights, which `scalefold train` writes, or a weight file"
        ) from None
    mark = ready_mark(checkpoint)
    if mark.exists():
        stated = mark.read_text("ascii", errors="backslashreplace").strip()
        _compare_hash(path, hashlib.sha256(content).hexdigest(), stated)
    try:
        tree = json.loads(content)
        if tree["format"] != FORMAT:
            raise InputError(
                f"{path}: checkpoint format {tree['format']!r}, this version of scalefold reads "
                f"{FORMAT}: use the version that wrote it ({tree.get('scalefold_version')})"
            )
        return _METADATA.validate_python(tree)
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path}: not a valid description of a checkpoint ({error}). It is damaged: use "
            "another checkpoint"
        ) from None


def load_weights(checkpoint: Path, which: Literal["averaged", "weights"] = "averaged") -> State:
    """Weights of a checkpoint, on the CPU; needs nothing else of the training code.

    Raises
    ------
    InputError, ChecksumError
        If the checkpoint or its file is missing or damaged.
    """
    return cast(State, _read(checkpoint, which))


def load_training(checkpoint: Path) -> dict[str, Any]:
    """What `save` was given as ``training``; raises as `load_weights`."""
    return cast(dict[str, Any], _read(checkpoint, "training"))


def _read(checkpoint: Path, name: str) -> object:
    path = checkpoint / f"{name}.pt"
    stated = read_metadata(checkpoint).files.get(path.name)
    if stated is None:
        raise InputError(f"{checkpoint / METADATA_FILE}: does not list {path.name}")
    try:
        _compare_hash(path, file_sha256(path), stated.sha256)
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path}: missing, the checkpoint is incomplete: use another") from None
    except pickle.UnpicklingError as error:
        raise InputError(f"{path}: holds more than tensors and numbers: {error}") from None


def _compare_hash(path: Path, found: str, stated: str) -> None:
    if found != stated:
        raise ChecksumError(
            f"{path}: damaged or replaced: sha256 {found}, {stated} was written. Restore the file "
            "from a copy, or use an earlier checkpoint of the run: --resume does once you delete "
            f"{path.parent} and {ready_mark(path.parent).name}"
        )
