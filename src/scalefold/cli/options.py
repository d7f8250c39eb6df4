"""Options that several commands share, and how they become a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalefold.errors import InputError

if TYPE_CHECKING:
    from scalefold.config import Config

ConfigFiles = Annotated[
    list[Path],
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Configuration (YAML). Give it several times: later files override earlier ones.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Override one key, such as [cyan]training.steps=20[/]; the value is read as YAML.",
    ),
]
ShardFolder = Annotated[
    Path, typer.Option("--shards", metavar="FOLDER", help="Shards that `scalefold pack` wrote.")
]
Device = Annotated[
    str,
    typer.Option(
        help="[cyan]auto[/] (a GPU if there is one), [cyan]cpu[/], [cyan]cuda[/], [cyan]cuda:1[/]."
    ),
]


def read_config(files: list[Path], overrides: list[str] | None) -> Config:
    """Load the files and lay the ``--set`` options over them.

    Raises
    ------
    InputError
        See `scalefold.config.load_config` and `parse_overrides`.
    """
    from scalefold.config import load_config

    return load_config(files, parse_overrides(overrides or []))


def parse_overrides(overrides: list[str]) -> dict[str, Any]:
    """Turn ``["training.steps=20", …]`` into ``{"training": {"steps": 20}, …}``.

    Raises
    ------
    InputError
        One of them is not ``KEY=VALUE``, its value is not YAML, or two of them contradict.
    """
    import yaml

    tree: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        names = key.strip().split(".")
        if not equals or not all(names):
            raise InputError(
                f"--set {text!r}: expected KEY=VALUE with the key's full path, such as "
                "training.steps=20"
            )
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InputError(f"--set {text!r}: the value is not valid YAML: {error}") from None
        section = tree
        for name in names[:-1]:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise InputError(
                    f"--set {text!r}: {name!r} was given a value before, not a section"
                )
        section[names[-1]] = parsed
    return tree
