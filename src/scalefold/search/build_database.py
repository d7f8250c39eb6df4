"""Build an HH-suite database, such as one of templates like PDB70, from alignments.

An interrupted build is resumed: finished profiles stay in ``<database>.parts`` until the database
is complete.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scalefold.errors import InputError
from scalefold.io.atomic import make_folder, write_bytes
from scalefold.progress import LiveLine
from scalefold.raw.alignment import source_order
from scalefold.raw.rejected import Rejected
from scalefold.search.a3m import format_a3m, query_of, rename_query
from scalefold.search.binaries import find_binary, find_hhsuite_data
from scalefold.search.ffindex import FFIndex, checked_name, index_file, write_ffindex
from scalefold.search.given_alignments import ENDINGS, read_given
from scalefold.search.hhsuite import cstranslate, database_part, hhmake
from scalefold.search.process import Limits

STAGE: Final = "build-db"
_LENGTH: Final = re.compile(rb"^LENG +(\d{1,9})\b", re.MULTILINE)


@dataclass(frozen=True)
class NamedAlignment:
    """An alignment that will be an entry.

    Parameters
    ----------
    name
        Of the entry; templates need ``<entry>_<chain>``.
    read
        Returns its a3m.
    """

    name: str
    read: Callable[[], bytes]


def alignments_of_folder(folder: Path) -> list[NamedAlignment]:
    """Return the alignments of a folder, by name.

    They are its files ``<name>.a3m`` or ``<name>.sto``, or those of a raw folder of `scalefold
    fetch` or OpenProteinSet: of each ``<name>/a3m/``, the first by `source_order`.

    Raises
    ------
    InputError
        The folder is not there, or has none.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of alignments. Correct the path")
    if (folder / "alignments").is_dir():
        folder = folder / "alignments"
    there = sorted(folder.iterdir(), reverse=True)  # of one name, a3m comes after sto, and counts
    files = {p.stem: p for p in there if p.suffix in ENDINGS and p.is_file()}
    for below in folder.glob("*/a3m"):
        found = sorted(below.glob("*.a3m"), key=lambda path: source_order(path.stem))
        if found:
            files[below.parent.name] = found[0]
    if not files:
        raise InputError(
            f"{folder}: has no alignment, neither <name>.a3m or .sto nor <name>/a3m/*.a3m"
        )
    return [NamedAlignment(name, _reading(path)) for name, path in sorted(files.items())]


def alignments_of_shards(folder: Path) -> list[NamedAlignment]:
    """Return the alignments of packed chains, one for each sequence, by chain key.

    Raises as `scalefold.shards.reader.ShardReader`.
    """
    from scalefold.shards.reader import ShardReader

    reader = ShardReader(folder)
    columns = (reader.index[name].to_pylist() for name in ("chain_key", "msa_shard", "seq_id"))
    first: dict[bytes, str] = {}
    for key, shard, sequence in zip(*columns, strict=True):
        if shard is not None:
            first.setdefault(sequence, key)
    return [
        NamedAlignment(key, lambda key=key: format_a3m(reader.msa(key)))  # type: ignore[misc]
        for key in sorted(first.values())
    ]


def build_database(
    database: Path,
    alignments: Sequence[NamedAlignment],
    limits: Limits,
    jobs: int = 1,
) -> list[Rejected]:
    """Write ``<database>_a3m``, ``_hhm`` and, last, ``_cs219``.

    Parameters
    ----------
    database
        Prefix of the files; their folder is made.
    alignments
        The entries; those that cannot be used are left out.

    Returns
    -------
    list of Rejected
        Entries that were left out, and why.

    Raises
    ------
    InputError
        A program is not installed, nothing can be written, or no alignment can be used.
    """
    for program in ("hhmake", "cstranslate"):
        find_binary(program)
    find_hhsuite_data("cs219.lib")
    make_folder(database.parent)
    parts = database.with_name(f"{database.name}.parts")
    make_folder(parts)
    made, rejected = _make_parts(parts, alignments, limits, jobs)
    if not made:
        raise InputError(
            f"{database}: none of {len(alignments)} alignments can be used; {rejected[0].chain_key}"
            f": {rejected[0].reason}"
        )
    # Until the end the database counts as incomplete, also in place of an earlier one.
    index_file(database_part(database, "cs219")).unlink(missing_ok=True)
    for part in ("a3m", "hhm"):
        write_ffindex(database_part(database, part), _contents(made, part))
    _write_states(database, parts, limits)
    check_parts_agree(database)
    shutil.rmtree(parts)
    return rejected


def check_parts_agree(database: Path) -> None:
    """Check that the three parts have the same entries, of the same lengths.

    Raises
    ------
    InputError
        They do not: a program would leave entries out, or crash.
    """
    a3m, hhm, states = (FFIndex(database_part(database, part)) for part in ("a3m", "hhm", "cs219"))
    names = {*a3m, *hhm, *states}
    for name in sorted(names):
        missing = [
            part
            for part, index in (("a3m", a3m), ("hhm", hhm), ("cs219", states))
            if name not in index
        ]
        if missing:
            raise InputError(
                f"{database}: {name} is not in its {' and '.join(missing)}. Build it again"
            )
        length = _LENGTH.search(hhm[name])
        if length is None or states.num_bytes(name) != int(length[1]):
            raise InputError(
                f"{database}: {name} has {states.num_bytes(name)} column states, and its profile "
                f"{length[1].decode() if length else 'does not state its'} columns. Build it again"
            )


def _make_parts(
    parts: Path,
    alignments: Sequence[NamedAlignment],
    limits: Limits,
    jobs: int,
) -> tuple[dict[str, Path], list[Rejected]]:
    """Make a3m and hhm of each entry if they are missing; return name -> path without ending."""
    made: dict[str, Path] = {}
    rejected: list[Rejected] = []
    line = LiveLine("profiles", len(alignments), seconds_between_lines=30)
    with line, ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(_make, parts, item, limits): item.name for item in alignments}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                name, result = futures[future], future.result()
                if isinstance(result, Rejected):
                    rejected.append(result)
                else:
                    made[name] = result
                line.show(done, name)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return dict(sorted(made.items())), sorted(rejected, key=lambda r: r.chain_key)


def _make(parts: Path, item: NamedAlignment, limits: Limits) -> Path | Rejected:
    """Make the parts of an entry. An error of writing ends the whole build."""
    try:
        checked_name(item.name)
        content = item.read()
        path = parts / hashlib.sha256(item.name.encode() + b"\0" + content).hexdigest()[:32]
        if path.with_suffix(".hhm").exists():
            return path
        profile, _ = hhmake(content, query_of(content, "its alignment"), item.name, limits)
    except InputError as error:
        return Rejected(item.name, STAGE, str(error))
    write_bytes(path.with_suffix(".a3m"), rename_query(content, item.name))
    write_bytes(path.with_suffix(".hhm"), profile)
    return path


def _contents(made: dict[str, Path], part: str) -> Iterator[tuple[str, bytes]]:
    for name, path in made.items():
        yield name, path.with_suffix(f".{part}").read_bytes()


def _write_states(database: Path, parts: Path, limits: Limits) -> None:
    """Translate into the folder of parts first: cstranslate does not write atomically."""
    new = parts / "states"
    cstranslate(database_part(database, "a3m"), new, limits)
    states = FFIndex(new)
    write_ffindex(database_part(database, "cs219"), ((name, states[name]) for name in states))


def _reading(path: Path) -> Callable[[], bytes]:
    return lambda: read_given(path)
