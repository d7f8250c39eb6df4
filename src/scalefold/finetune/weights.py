"""Which model given weights belong to, as settings on top of the preset ``finetune-own``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from scalefold.checkpoint.read import AVERAGED_FILE, METADATA_FILE, load_weights, read_metadata
from scalefold.config.load import preset_config
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.weights import check_state, guess_format, import_weights

PRESET: Final = "finetune-own"
_OF_A_FILE: Final = ("model_1", "model_3", "model_1_ptm", "model_3_ptm")
"""Presets with different parameters; those of the others are the same as of one of these."""
_OF_A_CHECKPOINT: Final[Mapping[str, Literal["averaged", "weights"]]] = {
    AVERAGED_FILE: "averaged",
    "weights.pt": "weights",
}
"""Files of a checkpoint that training can start from; `checkpoint.json` beside them says more."""
_NAMED: Final = re.compile(r"model_[1-5](?:_ptm)?(?![a-z0-9])")


@dataclass(frozen=True)
class GivenWeights:
    """Weights, and what a configuration says of them.

    Attributes
    ----------
    model : str
        What the model is called in messages.
    settings : dict
        Differences from the preset, nested as in a configuration file.
    """

    model: str
    num_parameters: int
    settings: dict[str, Any]


def read_given_weights(path: Path, preset: str | None = None) -> GivenWeights:
    """Read weights to find out which model they belong to.

    Parameters
    ----------
    path : Path
        AlphaFold's, OpenFold's or ScaleFold's file; or a checkpoint folder, which states its model,
        or the averaged or last weights in one.
    preset : str, optional
        Preset of the model of a file. Default: as the file's name says, or else that of AlphaFold's
        models which fits.

    Raises
    ------
    InputError
        They are not there, damaged, or of no such model.
    """
    if not path.exists():
        raise InputError(f"--weights {path}: no such weight file or checkpoint folder")
    checkpoint = path.parent if path.name in _OF_A_CHECKPOINT else path
    if (checkpoint / METADATA_FILE).is_file():
        if preset is not None:
            raise InputError(f"{path}: a checkpoint states its model: leave out --preset")
        return _of_checkpoint(checkpoint, _OF_A_CHECKPOINT.get(path.name, "averaged"))
    if path.is_dir():
        raise InputError(
            f"--weights {path}: a folder, but no checkpoint. Name a file, or a folder "
            "step-<number> of a training run"
        )
    named = _NAMED.findall(path.name)
    presets = [preset] if preset else named[-1:] or list(_OF_A_FILE)
    problems = []
    for name in presets:
        model = preset_config(name)
        try:
            state = import_weights(path, guess_format(path), model.model)
        except InputError as error:
            problems.append(str(error))
            continue
        count = sum(value.numel() for value in state.values())
        return GivenWeights(f"preset {name}", count, _settings(model))
    raise InputError(
        f"{path}: does not fit preset {' or '.join(presets)}. Give --preset if it belongs to "
        "another one. For a model with sizes of its own, give --weights the checkpoint folder "
        f"step-<number> of its training, which states them. With preset {presets[0]}: {problems[0]}"
    )


def _of_checkpoint(path: Path, which: Literal["averaged", "weights"]) -> GivenWeights:
    trained = read_metadata(path).config
    sections = {name: trained[name] for name in ("model", "features", "loss")}
    model = preset_config(PRESET, sections)
    state = check_state(load_weights(path, which), model.model, str(path))
    count = sum(value.numel() for value in state.values())
    return GivenWeights("its own model", count, _settings(model))


def _settings(model: Config) -> dict[str, Any]:
    """The model, the sizes of samples and the pTM loss, where they differ from the preset's."""
    base = preset_config(PRESET).model_dump(mode="json")
    own = model.model_dump(mode="json")
    settings = {
        name: differences
        for name in ("model", "features")
        if (differences := _differences(base[name], own[name]))
    }
    if own["model"]["pae_head"]:
        settings["loss"] = {"pae": own["loss"]["pae"] or 0.1}
    return settings


def _differences(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The values of ``own`` that ``base`` has otherwise, nested alike."""
    found: dict[str, Any] = {}
    for name, value in own.items():
        if isinstance(value, Mapping):
            if below := _differences(base[name], value):
                found[name] = below
        elif value != base[name]:
            found[name] = value
    return found
