"""A configuration with some values changed: what benchmarks compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalefold.config.load import make_config, merge
from scalefold.config.schema import Config


def varied(config: Config, changes: Mapping[str, Any]) -> Config:
    """The configuration with some values, by their dotted keys, replaced; validated.

    Raises
    ------
    InputError
        There is no such key, or a value is not possible.
    """
    tree = config.model_dump(mode="json")
    for key, value in changes.items():
        branch: Any = value
        for name in reversed(key.split(".")):
            branch = {name: branch}
        tree = merge(tree, branch)
    return make_config(tree, source="variant")
