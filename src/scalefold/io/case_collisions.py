"""Chains whose names differ only in the case of letters, on file systems that ignore case."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from scalefold.errors import InputError


def check_case_collisions(files: Iterable[Path], folder: Path) -> None:
    """Refuse chains such as 1abc_A and 1abc_a on a file system that has one folder for both.

    Raises
    ------
    InputError
        Two paths differ in the case of letters alone, and below ``folder`` they are one file.
    """
    alike: dict[str, Path] = {}
    for path in files:
        other = alike.setdefault(str(path).lower(), path)
        if other == path:
            continue
        if not _is_blind_to_case(folder):  # asked once: thousands of paths may be alike
            return
        raise InputError(
            f"{other} and {path} are one file: the file system does not tell the case of letters. "
            "Choose a folder on one that does, or list only one of these chains"
        )


def _is_blind_to_case(folder: Path) -> bool:
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix="case", dir=there) as made:
            path = Path(made)
            return path.with_name(path.name.swapcase()).exists()
    except OSError:  # nor can fetch write there, and it will say so
        return False
