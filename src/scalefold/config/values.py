"""Kinds of values that keys of the configuration take, and what is refused of each."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from string import Formatter
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from scalefold.config.mirror_roots import local_folder

_MOST = 2**53  # what a float counts exactly
Positive = Annotated[int, Field(ge=1, le=_MOST)]
NonNegative = Annotated[int, Field(ge=0, le=_MOST)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
BelowOne = Annotated[float, Field(ge=0.0, lt=1.0)]
Weight = Annotated[float, Field(ge=0.0)]


_Text = TypeVar("_Text", str, Path)
_Paths = TypeVar("_Paths", str, str | list[str])


def template(required: str, *others: str, instead: str | None = None) -> AfterValidator:
    """Check that a path, or each of several, has its placeholders, and no unknown ones.

    ``instead`` is one that serves in place of ``required``.
    """

    def check(given: _Paths) -> _Paths:
        for path in [given] if isinstance(given, str) else given:
            check_one(path)
        return given

    def check_one(path: str) -> None:
        known = [name for name in (required, *others, instead) if name is not None]
        may = "may have " + ", ".join(f"{{{name}}}" for name in known)
        try:
            names = [name for _, name, _, _ in Formatter().parse(path) if name is not None]
        except ValueError as error:
            raise ValueError(f"{error}; it {may}") from None
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"nothing fills {{{unknown[0]}}}; it {may}")
        if required not in names and (instead is None or instead not in names):
            raise ValueError(f"without {{{required}}} it is the same path for all")

    return AfterValidator(check)


def _check_path(path: _Text) -> _Text:
    """Refuse what a shell would expand: without a shell it names a folder literally."""
    if str(path).startswith(("~", "$")):
        raise ValueError("is taken as written, ~ and $HOME are not expanded: write it in full")
    return path


def _check_root(root: str) -> str:
    """Refuse a mirror that could never be fetched from, whether it exists now or not."""
    local_folder(_check_path(root))
    return root


def _check_name(name: str) -> str:
    """Refuse the name of a file that would lie elsewhere than the others of its chain."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.name or not name.isprintable():
        raise ValueError(
            f"{name!r} names a file outside of its chain's folder: give the name alone, without "
            "ending, as uniref90_hits. Where the files lie is said by data.mirrors"
        )
    return name


def _check_results(path: Path) -> Path:
    if {"{", "}"} & {*str(path)}:
        raise ValueError("has a brace, which Snakemake takes for a wildcard: rename it")
    return path


Root = Annotated[str, AfterValidator(_check_root)]
WrittenPath = Annotated[Path, AfterValidator(_check_path)]
FileName = Annotated[str, AfterValidator(_check_name)]
ResultsFolder = Annotated[WrittenPath, AfterValidator(_check_results)]
