"""Where the chains' alignments are: in a given folder, or the query alone.

This is the place for a third way, a search: it leaves alignments in a folder of one of the layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scalefold.config.schema import DataConfig
from scalefold.errors import InputError
from scalefold.io.atomic import make_folder, write_bytes
from scalefold.raw.chains import Rejected

QUERY: Final = "query"
"""Name of the alignments that hold the query alone."""
_LAYOUTS: Final = ("pdb/{chain}/a3m/{name}.a3m", "{chain}/a3m/{name}.a3m", "{chain}/{name}.a3m")
"""Where a folder may have a chain's alignments; template hits alike, with hhr in place of a3m."""
_ORDER: Final[tuple[str, ...]] = tuple(DataConfig.model_fields["alignments"].default)


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
    rejected : list of Rejected
        The chains without.
    """

    data: dict[str, Any]
    sequences: dict[str, str]
    num_queries: int
    rejected: list[Rejected]


def find_alignments(
    sequences: Mapping[str, str], given: Path | None, query_folder: Path | None
) -> Alignments:
    """Say where the alignments are, and write those that hold the query alone.

    Parameters
    ----------
    sequences : mapping of str to str
        Of the chains, by key.
    given : Path or None
        Folder with a folder for each chain, in one of the usual layouts.
    query_folder : Path or None
        Gets an alignment of the query alone for each chain without one in ``given``; None: such
        chains are left without.

    Raises
    ------
    InputError
        There are none: both are None, or the folder has none of these chains.
    """
    if given is None and query_folder is None:
        raise InputError(
            "nothing says where the alignments are: give --alignments FOLDER, or --query-alone, "
            "which trains and evaluates on the sequences alone"
        )
    layout, names, hits = _LAYOUTS[1], set[str](), set[str]()
    found: set[str] = set()
    if given is not None:
        layout, names, hits = _inspect(given, sequences)
        places = {
            key: [given / layout.format(chain=key, name=n) for n in names] for key in sequences
        }
        found = {key for key, files in places.items() if any(file.is_file() for file in files)}
    without = [key for key in sequences if key not in found]
    rejected: list[Rejected] = []
    if query_folder is None:
        reason = f"no alignment in {given}: --query-alone uses chains by their sequence alone"
        rejected = [Rejected(key, "alignments", reason) for key in without]
    else:
        for key in without:
            _write_query(query_folder / layout.format(chain=key, name=QUERY), key, sequences[key])
        names = names | {QUERY}
        found.update(without)
    roots = [str(folder) for folder in (given, query_folder) if folder is not None]
    data = {
        "mirrors": {
            "alignments": roots,
            "alignment_path": layout,
            "hhr_path": layout.replace("a3m", "hhr"),
        },
        "alignments": sorted(names, key=_place),
        "template_hits": min(hits, default=None),
    }
    usable = {key: text for key, text in sequences.items() if key in found}
    return Alignments(data, usable, len(without) - len(rejected), rejected)


def _inspect(folder: Path, keys: Iterable[str]) -> tuple[str, set[str], set[str]]:
    """The layout of a folder, and the names of alignments and of template hits there."""
    keys = list(keys)
    for layout in _LAYOUTS:
        names, hits = set[str](), set[str]()
        for key in keys:
            place = folder / layout.format(chain=key, name="any")
            names |= {path.stem for path in place.parent.glob("*.a3m")}
            hhr = Path(str(place.parent).replace("/a3m", "/hhr"))
            hits |= {path.stem for path in hhr.glob("*.hhr")}
        if names:
            return layout, names, hits
    if not folder.is_dir():
        raise InputError(f"--alignments {folder}: no such folder. Correct the path")
    places = ", ".join(layout.format(chain=keys[0], name="…") for layout in _LAYOUTS)
    raise InputError(
        f"--alignments {folder}: has no alignment of any of {len(keys)} chains; looked for "
        f"{places}. A chain's folder is named <entry>_<author chain>, the entry in lower case. "
        "--query-alone does without"
    )


def _place(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def _write_query(path: Path, key: str, sequence: str) -> None:
    content = f">{key}\n{sequence}\n".encode()
    if not path.is_file() or path.read_bytes() != content:
        make_folder(path.parent)
        write_bytes(path, content)
