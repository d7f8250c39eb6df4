"""The settings that shards and a training run depend on, and the keys made from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from pathlib import PurePath
from typing import Any, Final

from scalefold.config.data import MaxRowsConfig
from scalefold.config.schema import Config

FREE_KEYS: Final = (
    "run_name",
    "results",
    "container",
    "preset",  # a name; what it sets is compared key by key
    "data",  # paths and buckets; the manifest's hash stands for the data themselves
    "search",
    "shards",
    "evaluation",
    "report",
    "predict",
    "distillation",  # as for data; what samples make of it is in features and sampling
    "stages",  # a training run is one of them
    "training.steps",
    "training.checkpoint_every",
    "training.keep_checkpoints",
    "training.log_every",
    "training.max_non_finite_steps",
    "training.recomputation",
    "training.cuda_graphs",
    "training.compile",
    "training.deterministic",
    "training.kernels",  # other roundings, as another device has
    "training.loader_workers",
    "training.prefetch",
    "training.accept_new_data",
    "training.start_timeout_seconds",
    "training.exchange_timeout_seconds",
    "training.max_staleness",  # above 0 the order of samples depends on their speed anyway
    "parallel",  # other roundings, as another number of processes has
)
"""Keys and sections that may change when a run is resumed; no other may."""

PACKING_KEYS: Final = ("data.alignments", "data.template_hits", "data.buckets", "shards")
"""Keys and sections that the bytes of the shards depend on. Where raw files and the list of chains
come from is not among them.
"""

FORMER_VALUES: Final[Mapping[str, Any]] = {
    "loss.violation_ca_c_n_stddev": 0.0311,
    "training.trainable": None,
    "sampling.distilled_share": 0.0,
}
"""Settings that earlier versions lack, and what those versions did. A setting with this value is no
part of a key, so results of earlier versions keep their keys."""

PRESET_LIMITS: Final = (MaxRowsConfig(), MaxRowsConfig(uniref90_hits=None, mgnify_hits=None))
"""`shards.max_rows` of the presets."""


def trajectory_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting that the weights after a number of steps depend on, by its dotted key.

    Initial weights that are of the run itself are named from its folder, which may be moved.

    Parameters
    ----------
    tree : mapping
        A whole configuration, as ``model_dump(mode="json")`` gives it.
    """
    found = {**FORMER_VALUES, **dict(leaves(tree))}
    settings = {key: value for key, value in found.items() if not _is_free(key)}
    if not found["sampling.distilled_share"]:  # no such sample is made
        settings = {k: v for k, v in settings.items() if not k.startswith("features.distilled.")}
    run = PurePath(tree["results"], tree["run_name"])
    initial = PurePath(tree["training"]["initial_weights"] or "")
    if initial.is_relative_to(run):
        settings["training.initial_weights"] = initial.relative_to(run).as_posix()
    return settings


def run_key(config: Config) -> str:
    """Twelve hex digits that stand for the trajectory of a training run, and name its folder.

    Configurations with the same key may continue each other's checkpoints (where the data are the
    same too); a configuration with another key is another run.
    """
    return _digits(_without_former_values(trajectory_settings(config.model_dump(mode="json"))))


def config_hash(config: Config) -> str:
    """Twelve hex digits that identify the configuration's content."""
    return _digits(config.model_dump(mode="json"))


def packing_hash(config: Config) -> str:
    """Twelve hex digits that stand for what raw files are packed with: `PACKING_KEYS`."""
    return _digits(_packing_sections(config))


def packing_settings(config: Config) -> dict[str, Any]:
    """Return the settings that `packing_hash` stands for, by dotted key."""
    return dict(leaves(_packing_sections(config)))


def former_packing_settings(config: Config) -> dict[str, Any]:
    """Return `packing_settings` as earlier versions would: those that packed with them stay valid.

    They had no limits by source. Where these are a preset's, nobody has asked for others.
    """
    return dict(leaves(_former_packing_sections(config)))


def packing_hashes(config: Config) -> tuple[str, ...]:
    """Return `packing_hash`, and that of `former_packing_settings`."""
    return packing_hash(config), _digits(_former_packing_sections(config))


def _former_packing_sections(config: Config) -> dict[str, Any]:
    sections = _packing_sections(config)
    if config.shards.max_rows in PRESET_LIMITS:
        shards = {key: value for key, value in sections["shards"].items() if key != "max_rows"}
        return {**sections, "shards": shards}
    return sections


def _packing_sections(config: Config) -> dict[str, Any]:
    _ = config.data.num_buckets  # must be known
    tree = _without_former_values(config.model_dump(mode="json"))
    return {key: reduce(getitem, key.split("."), tree) for key in PACKING_KEYS}


def _digits(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a nested mapping with their dotted keys."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _without_former_values(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    absent = object()
    return {
        name: _without_former_values(value, f"{prefix}{name}.")
        if isinstance(value, Mapping)
        else value
        for name, value in tree.items()
        if FORMER_VALUES.get(f"{prefix}{name}", absent) != value
    }


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE_KEYS)
