"""Options that several commands share, and how they become a configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalefold.errors import InputError

if TYPE_CHECKING:
    from scalefold.config import Config

EXIT_INPUT_ERROR = 2

ConfigFiles = Annotated[
    list[Path],
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Configuration (YAML). Of several files, later ones override earlier ones.",
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
Stage = Annotated[
    str | None,
    typer.Option(
        "--stage", metavar="NAME", help="Which of the configuration's stages, if it has several."
    ),
]
ShardFolder = Annotated[
    Path, typer.Option("--shards", metavar="FOLDER", help="Shards that `scalefold pack` wrote.")
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse shards that were packed with other settings or another list of chains than "
        "the configuration's; without it, warn. The workflow sets it.",
    ),
]


def check_there(path: Path, what: str) -> None:
    """Refuse a path before torch is imported, which takes long.

    Raises
    ------
    InputError
        There is no such file or folder.
    """
    if not path.exists():
        raise InputError(f"{path}: no such {what}. Correct the path")


ShardsOrFull = Annotated[
    Path | None,
    typer.Option(
        "--shards",
        metavar="FOLDER",
        help="Shards that `scalefold pack` wrote. Default: made-up shards with full samples.",
    ),
]


def checked_file(path: Path | None) -> Path | None:
    """Refuse an output file that cannot be written before anything is measured: a callback.

    Raises
    ------
    InputError
        See `scalefold.io.atomic.check_file`.
    """
    from scalefold.io.atomic import check_file

    if path is not None:
        check_file(path)
    return path


JsonFile = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", callback=checked_file, help="JSON to write.")
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


def read_stage(files: list[Path], overrides: list[str] | None, stage: str | None) -> Config:
    """Load the configuration of one of the training runs that the files describe.

    Raises
    ------
    InputError
        If there are several and none of them is named, or there is none of the name; see also
        `read_config`.
    """
    from scalefold.config import load_stages

    stages = load_stages(files, parse_overrides(overrides or []))
    if stage is None and len(stages) == 1:
        return next(iter(stages.values()))
    if not stage or stage not in stages:
        names = ", ".join(stages)
        found = "" if stage is None else f" {stage!r}"
        raise InputError(
            f"--stage{found}: the configuration's stages are {names}. Choose one"
            if names
            else f"--stage{found}: the configuration has no stages. Leave the option out"
        )
    return stages[stage]


def parse_part(text: str) -> tuple[int, int]:
    """Turn ``0/8`` into a part's number and how many parts there are.

    Raises
    ------
    InputError
        It is something else.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise InputError(f"--part {text!r}: expected a number and how many parts, such as 0/8")
    return int(match[1]), int(match[2])


def parse_overrides(overrides: list[str]) -> dict[str, Any]:
    """Turn ``["training.steps=20", …]`` into ``{"training": {"steps": 20}, …}``.

    Raises
    ------
    InputError
        One of them is not ``KEY=VALUE``, its value is not YAML, or two of them contradict.
    """
    tree: dict[str, Any] = {}
    for text in overrides:
        names, parsed = _assignment("--set", text)
        section = tree
        for name in names[:-1]:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise InputError(
                    f"--set {text!r}: {name!r} was given a value before, not a section"
                )
        section[names[-1]] = parsed
    return tree


def parse_variations(variations: list[str]) -> dict[str, list[Any]]:
    """Turn ``["training.recomputation=[none, full]", …]`` into the values of each key.

    Raises
    ------
    InputError
        One of them is not ``KEY=[VALUE, …]``.
    """
    values: dict[str, list[Any]] = {}
    for text in variations:
        names, parsed = _assignment("--vary", text)
        if not isinstance(parsed, list) or not parsed:
            raise InputError(
                f"--vary {text!r}: expected a list of values, such as "
                "'training.recomputation=[none, full]'"
            )
        values[".".join(names)] = parsed
    return values


def _assignment(option: str, text: str) -> tuple[list[str], Any]:
    """The key's names and the value, read as YAML, of ``KEY=VALUE``."""
    from scalefold.config.yaml_text import read_yaml

    key, equals, value = text.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise InputError(
            f"{option} {text!r}: expected KEY=VALUE with the key's full path, such as "
            "training.steps=20"
        )
    try:
        return names, read_yaml(value)
    except InputError as error:
        hint = ""
        if value.startswith("{"):
            hint = f""". Put a text with braces in quotes of its own: '{key}="{value}"'"""
        raise InputError(f"{option} {text!r}: the value is {error}{hint}") from None
