"""May a run continue from a checkpoint? Only with what the result depends on unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from scalefold.checkpoint.provenance import InputHashes
from scalefold.checkpoint.read import FormerData, Metadata
from scalefold.config.identity import FREE_KEYS, trajectory_settings
from scalefold.config.schema import Config
from scalefold.errors import InputError, listed

_ABSENT: Final = "(absent)"
_STAND_FOR_DATA: Final = ("data", "shards")
"""Sections that are not compared themselves: the shards that they lead to are."""


def check_resumable(
    checkpoint: Path, metadata: Metadata, config: Config, inputs: InputHashes
) -> None:
    """Refuse to continue with another model, seed, optimiser, data or initial weights.

    Raises
    ------
    InputError
        Listing the first few of `run_differences`.
    """
    differences = run_differences(metadata, config, inputs)
    if not differences:
        return
    if differences == _other_data(metadata, config, inputs):
        raise InputError(f"{checkpoint}: this run cannot continue from there. {differences[0]}")
    free = [key for key in FREE_KEYS if key not in _STAND_FOR_DATA]
    raise InputError(
        f"{checkpoint}: this run cannot continue from there. What differs "
        f"({len(differences)}):{listed(differences)}\n"
        "Undo the changes, or start a new run in another folder (with "
        f"training.initial_weights: {checkpoint} to keep what was learned). The shards must be "
        "those that it was trained on, the initial weights those that it started from; of the "
        f"settings only these may change: {', '.join(free)}"
    )


def run_differences(metadata: Metadata, config: Config, inputs: InputHashes) -> list[str]:
    """Say in what a checkpoint's run is another than this one.

    Returns
    -------
    list of str
        The hashes of the data and of the initial weights where these differ, then each differing
        key with both values; empty if this run may continue from the checkpoint.
    """
    differences = _other_data(metadata, config, inputs)
    before, now = metadata.initial_weights_sha256, inputs.initial_weights_sha256
    if before is not None and now is not None and before != now:
        differences.append(
            f"initial weights: sha256 {before[:12]} in the checkpoint, {now[:12]} now "
            f"({config.training.initial_weights} was replaced, or another is named)"
        )
    differences += [
        f"{key}: {before!r} in the checkpoint, {now!r} now"
        for key, before, now in config_differences(
            trajectory_settings(metadata.config),
            trajectory_settings(config.model_dump(mode="json")),
        )
    ]
    return differences


def former_data(metadata: Metadata, inputs: InputHashes) -> list[FormerData]:
    """Return the shards that a checkpoint's run has been trained on until now, but the present."""
    before = metadata.data_manifest_sha256
    if before == inputs.data_manifest_sha256:
        return metadata.former_data
    return [*metadata.former_data, FormerData(metadata.step, before)]


def _other_data(metadata: Metadata, config: Config, inputs: InputHashes) -> list[str]:
    before, now = metadata.data_manifest_sha256, inputs.data_manifest_sha256
    if before == now or config.training.accept_new_data:
        return []
    return [
        f"training data: manifest {before[:12]} in the checkpoint, {now[:12]} now (the shards were "
        "packed again, or are others). To go on with them, give --accept-new-data, or set "
        "training.accept_new_data in the workflow"
    ]


def config_differences(
    before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys whose values differ, with both values."""
    for key in [*before, *(key for key in now if key not in before)]:
        one, other = before.get(key, _ABSENT), now.get(key, _ABSENT)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from config_differences(one, other, f"{prefix}{key}.")
        elif one != other:
            yield f"{prefix}{key}", one, other
