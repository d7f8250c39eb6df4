"""Where the chains' alignments are: in a given folder, from a search, or the query alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scalefold.errors import InputError
from scalefold.io.atomic import make_folder, write_bytes
from scalefold.raw.alignment import source_order
from scalefold.raw.rejected import Rejected

QUERY: Final = "query"
"""Name of the alignments that hold the query alone."""
_LAYOUTS: Final = ("pdb/{chain}/a3m/{name}.a3m", "{chain}/a3m/{name}.a3m", "{chain}/{name}.a3m")
"""Where a folder may have a chain's alignments; template hits alike, with hhr in place of a3m."""


@dataclass(frozen=True)
class Alignments:
    """Which chains have alignments, and where.

    Attributes
    ----------
    data : dict
        The configuration's section ``data``, as far as it concerns alignments.
    sequences : dict of str to str
        Of the chains that have one, by key.
    num_queries : int
        How many of them have their sequence alone.
    """

    data: dict[str, Any]
    sequences: dict[str, str]
    num_queries: int
    rejected: list[Rejected]


def check_alignments(
    given: Path | None, *, query_alone: bool, search: Mapping[str, Any] | None
) -> None:
    """Refuse what no structure has to be read for; the parameters are those of `find_alignments`.

    Raises
    ------
    InputError
        Nothing says where alignments are, or the folder is not there.
    """
    if given is None and not query_alone and not search:
        raise InputError(
            "nothing says where the alignments are: give --alignments FOLDER, --config FILE with a "
            "section search, or --query-alone, which trains and evaluates on the sequences alone"
        )
    if given is not None and not given.is_dir():
        raise InputError(f"--alignments {given}: no such folder. Correct the path")


def find_alignments(
    sequences: Mapping[str, str],
    given: Path | None,
    own: Path,
    *,
    query_alone: bool,
    search: Mapping[str, Any] | None = None,
) -> Alignments:
    """Say where the alignments are, and write those that hold the query alone.

    Parameters
    ----------
    given : Path or None
        Folder with a folder for each chain, in one of the usual layouts.
    own : Path
        Is made, and gets the alignments that are written.
    query_alone : bool
        Whether an alignment of the query alone is written for chains without one in ``given``.
    search : mapping or None
        The configuration's section of this name: the workflow searches alignments for chains
        without.

    Raises
    ------
    InputError
        As `check_alignments`, or the folder has none of these chains.
    """
    check_alignments(given, query_alone=query_alone, search=search)
    make_folder(own)
    layout, names, hits = _LAYOUTS[1], set[str](), set[str]()
    found: set[str] = set()
    if given is not None:
        layout, names, hits = _inspect(given, sequences)
        places = {
            key: [given / layout.format(chain=key, name=name) for name in names]
            for key in sequences
        }
        found = {key for key, files in places.items() if any(file.is_file() for file in files)}
    without = [key for key in sequences if key not in found]
    rejected: list[Rejected] = []
    queries = [] if search or not query_alone else without
    for key in queries:
        _write_query(own / layout.format(chain=key, name=QUERY), key, sequences[key])
    if search:
        steps = search.get("steps") or []
        names = names | {step["name"] for step in steps if step["tool"] != "hhsearch"}
        hits = {step["name"] for step in steps if step["tool"] == "hhsearch"} or hits
    elif query_alone:
        names = names | {QUERY}
    else:
        reason = f"no alignment in {given}; with --query-alone only its sequence is used"
        rejected = [Rejected(key, "alignments", reason) for key in without]
    mirrors = {
        "alignments": [str(folder) for folder in (given, own) if folder is not None],
        "alignment_path": layout,
        "hhr_path": layout.replace("a3m", "hhr"),
    }
    data = {
        "mirrors": mirrors,
        "alignments": sorted(names, key=source_order) or [QUERY],
        "template_hits": min(hits, default=None),
    }
    dropped = {one.chain_key for one in rejected}
    usable = {key: text for key, text in sequences.items() if key not in dropped}
    return Alignments(data, usable, len(queries), rejected)


def _inspect(folder: Path, keys: Iterable[str]) -> tuple[str, set[str], set[str]]:
    """The layout of a folder, and the names of alignments and of template hits there."""
    keys = list(keys)
    for layout in _LAYOUTS:
        names, hits = set[str](), set[str]()
        for key in keys:
            names |= _names(folder, layout, key)
            hits |= _names(folder, layout.replace("a3m", "hhr"), key)
        if names:
            return layout, names, hits
    places = ", ".join(layout.format(chain=keys[0], name="…") for layout in _LAYOUTS)
    raise InputError(
        f"--alignments {folder}: has no alignment of any of {len(keys)} chains; looked for "
        f"{places}. A chain's folder is named <entry>_<author chain>, the entry in lower case. "
        "--query-alone does without"
    )


def _names(folder: Path, layout: str, key: str) -> set[str]:
    place = folder / layout.format(chain=key, name="*")
    return {path.stem for path in place.parent.glob(place.name)}


def _write_query(path: Path, key: str, sequence: str) -> None:
    content = f">{key}\n{sequence}\n".encode()
    if not path.is_file() or path.read_bytes() != content:
        make_folder(path.parent)
        write_bytes(path, content)
