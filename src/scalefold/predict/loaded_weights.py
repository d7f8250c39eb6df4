"""The weights to predict with or to evaluate: a checkpoint's averaged ones, or a file's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalefold.checkpoint.read import AVERAGED_FILE, Metadata, load_weights, read_metadata
from scalefold.checkpoint.resume import config_differences
from scalefold.config.model import ModelConfig
from scalefold.errors import InputError, listed
from scalefold.io.atomic import file_sha256
from scalefold.weights import State, check_state, guess_format, import_weights


@dataclass(frozen=True)
class LoadedWeights:
    """Weights to predict with.

    Attributes
    ----------
    path : Path
        Checkpoint folder or weight file.
    weights : dict of str to Tensor
        Strictly the model's parameters, float32.
    weights_sha256 : str
        Of the file that they were read from.
    checkpoint : Metadata or None
        None for a weight file.
    """

    path: Path
    weights: State
    weights_sha256: str
    checkpoint: Metadata | None

    @property
    def step(self) -> int:
        """Training steps made; 0 for a weight file."""
        return 0 if self.checkpoint is None else self.checkpoint.step


def read_weights(path: Path, model: ModelConfig) -> LoadedWeights:
    """Read weights.

    Parameters
    ----------
    path : Path
        A checkpoint folder, whose averaged weights are taken, or a weight file: ScaleFold's,
        OpenFold's, or AlphaFold's (``.npz``).

    Raises
    ------
    InputError
        If it is not there, damaged, of another model (what differs is listed), or holds values that
        are not finite.
    """
    if not path.exists():
        raise InputError(f"{path}: no such checkpoint folder or weight file")
    if path.is_file():
        weights = import_weights(path, guess_format(path), model)
        return LoadedWeights(path, weights, file_sha256(path), None)
    metadata = read_metadata(path)
    _check_model(path, metadata, model)
    weights = check_state(load_weights(path, "averaged"), model, str(path))
    return LoadedWeights(path, weights, metadata.files[AVERAGED_FILE].sha256, metadata)


def _check_model(checkpoint: Path, metadata: Metadata, model: ModelConfig) -> None:
    """Raise an InputError that lists the first few keys in which a checkpoint's model differs."""
    differences = [
        f"model.{key}: {before!r} in the checkpoint, {now!r} in the configuration"
        for key, before, now in config_differences(
            metadata.config["model"], model.model_dump(mode="json")
        )
    ]
    if differences:
        raise InputError(
            f"{checkpoint}: checkpoint of another model. What differs ({len(differences)}):"
            f"{listed(differences)}\nUse the configuration that it was trained with"
        )
