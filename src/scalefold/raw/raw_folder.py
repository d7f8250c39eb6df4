"""Paths of an entry's and a chain's files in a raw folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

STRUCTURE_SUFFIXES: Final = (".cif.gz", ".cif", ".pdb.gz", ".pdb", ".ent.gz", ".ent")


def folder_hash(entry_id: str) -> str:
    """Return the archive's folder of an entry: its 2nd and 3rd last characters.

    ``1abc`` lies in ``ab``, ``pdb_1abc5678`` in ``67`` (wwPDB's rule for both forms of the id).
    """
    return entry_id[-3:-1]


def mmcif_path(raw: Path, entry_id: str, like: str = ".cif.gz") -> Path:
    """Return where a raw folder holds an entry's structure.

    ``like`` is a path on the mirrors, or the template of one: its ending says the format.
    """
    suffix = structure_suffix(like) or ".cif.gz"
    return raw / "mmcif" / folder_hash(entry_id) / f"{entry_id}{suffix}"


def in_other_formats(path: Path) -> list[str]:
    """Return the names of files beside ``path`` that have its structure in another format."""
    suffix = structure_suffix(path.name)
    stem = path.name.removesuffix(suffix)
    names = [f"{stem}{other}" for other in STRUCTURE_SUFFIXES if other != suffix]
    return [name for name in names if suffix and path.with_name(name).is_file()]


def structure_suffix(name: str) -> str:
    """Return the ending that says a structure's format; empty if it is another file."""
    return next((suffix for suffix in STRUCTURE_SUFFIXES if name.endswith(suffix)), "")


def alignment_folder(raw: Path, chain_key: str) -> Path:
    """Return the folder of a chain's ``a3m`` and ``hhr`` in a raw folder."""
    return raw / "alignments" / chain_key
