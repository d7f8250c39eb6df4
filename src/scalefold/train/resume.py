"""May a run continue from a checkpoint? Only with what the result depends on unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from scalefold.config.identity import FREE_KEYS, trajectory_settings
from scalefold.config.schema import Config
from scalefold.errors import InputError, listed
from scalefold.train.checkpoint import Metadata

_ABSENT: Final = "(absent)"
_STAND_FOR_DATA: Final = ("data", "shards")
"""Sections of which nothing is compared but what they come to: the shards."""


def check_resumable(
    checkpoint: Path, metadata: Metadata, config: Config, data_manifest_sha256: str
) -> None:
    """Refuse to continue with another model, seed, optimiser or data.

    Raises
    ------
    InputError
        Listing the first few of `run_differences`.
    """
    differences = run_differences(metadata, config, data_manifest_sha256)
    if not differences:
        return
    free = [key for key in FREE_KEYS if key not in _STAND_FOR_DATA]
    raise InputError(
        f"{checkpoint}: this run cannot continue from there. What differs "
        f"({len(differences)}):{listed(differences)}\n"
        "Undo the changes, or start a new run in another folder (with "
        f"training.initial_weights: {checkpoint} to keep what was learned). The shards must be "
        f"those that it was trained on; of the settings only these may change: {', '.join(free)}"
    )


def run_differences(metadata: Metadata, config: Config, data_manifest_sha256: str) -> list[str]:
    """Say in what a checkpoint's run is another than this one.

    Returns
    -------
    list of str
        The hashes of the data where these differ, then each differing key with both values; empty
        if this run may continue from the checkpoint.
    """
    differences = [
        f"{key}: {before!r} in the checkpoint, {now!r} now"
        for key, before, now in config_differences(
            trajectory_settings(metadata.config),
            trajectory_settings(config.model_dump(mode="json")),
        )
    ]
    if metadata.data_manifest_sha256 != data_manifest_sha256:
        differences.insert(
            0,
            f"training data: manifest {metadata.data_manifest_sha256[:12]} in the checkpoint, "
            f"{data_manifest_sha256[:12]} now (the shards were packed again, or are others)",
        )
    return differences


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
