"""The list of chains, the table of what was set aside, and where raw files lie."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

from scalefold.errors import InputError
from scalefold.io.atomic import make_folder, write_bytes

Split = Literal["train", "validation", "template"]
CHAIN_COLUMNS: Final = ("chain_key", "split", "cluster_id")
STRUCTURE_SUFFIXES: Final = (".cif.gz", ".cif", ".pdb.gz", ".pdb", ".ent.gz", ".ent")
REJECTED_COLUMNS: Final = ("chain_key", "stage", "reason")
# Files and folders get these names: neither part may lead to another folder, nor the entry's hash.
# File systems take 255 characters, and endings are added.
_CHAIN_KEY: Final = re.compile(r"(?=.{6,200}\Z)[a-z0-9_-]{4,}_[A-Za-z0-9.+-]+")

_FOUR_CHARACTERS: Final = re.compile(r"[0-9][a-z0-9]{3}")
_EXTENDED: Final = re.compile(r"pdb_0000[0-9][a-z0-9]{3}(?:_|$)")


class ChainRow(NamedTuple):
    """One line of ``chains.tsv``. A tuple, since the PDB has 630,000 of them.

    Parameters
    ----------
    chain_key
        ``<entry>_<author chain>``, the entry in lower case.
    split
        ``train``, ``validation``, or ``template`` (a structure only, without alignment).
    cluster_id
        Sequence cluster, ``None`` where it is not known.
    """

    chain_key: str
    split: Split
    cluster_id: str | None

    @property
    def entry_id(self) -> str:
        """Lower-case entry id."""
        return entry_of(self.chain_key)


@dataclass(frozen=True)
class Rejected:
    """A chain that a stage has set aside, and why."""

    chain_key: str
    stage: str
    reason: str


def read_chains(path: Path, key: str = "data.chains") -> list[ChainRow]:
    """Read ``chains.tsv``: a header line and one line a chain, tab-separated.

    ``key`` names the list in messages.

    Where one entry is listed by both forms of its name, its chains have the short one.

    Raises
    ------
    InputError
        No such file, another header, a key that is no entry's name and a chain's, an unknown split,
        a chain that is listed twice, or no chain at all. The message names the line.
    """
    if not path.exists():
        raise InputError(
            f"{key}: {path}: no such file. Correct the path, or make this list of chains "
            "(`scalefold chains`, docs/data.md)"
        )
    rows: list[ChainRow] = []
    splits = {split: split for split in get_args(Split)}  # one text for all lines
    clusters: dict[str, str] = {}
    line_of: dict[str, int] = {}
    for number, fields in read_table(path, CHAIN_COLUMNS):
        chain_key, split, cluster_id = fields
        if not is_chain_key(chain_key):
            raise InputError(
                f"{path}, line {number}: chain key {chain_key!r}, expected <entry>_<author chain> "
                "with the entry in lower case, such as 1abc_A: of the entry 4 or more letters, "
                "digits, - and _, of the chain letters, digits, ., + and -; 200 at most in all."
            )
        if split not in splits:
            raise InputError(
                f"{path}, line {number}: split {split!r} of {chain_key}, expected one of "
                f"{', '.join(splits)}."
            )
        if chain_key in line_of:
            raise InputError(
                f"{path}: chain {chain_key} is listed twice, in lines {line_of[chain_key]} and "
                f"{number}. Remove one of them."
            )
        line_of[chain_key] = number
        cluster_id = clusters.setdefault(cluster_id, cluster_id)
        rows.append(ChainRow(chain_key, splits[split], cluster_id or None))
    if not rows:
        raise InputError(f"{path}: lists no chain. Add at least one line below the header.")
    _use_one_form(rows, line_of, path)
    return rows


def _use_one_form(rows: list[ChainRow], line_of: dict[str, int], path: Path) -> None:
    """Give chains the short form of their entry if another line has it: it is one entry.

    A list that has the extended form alone stays as it is: so are its mirrors and its shards.
    """
    extended = [n for n, row in enumerate(rows) if short_form(row.chain_key) != row.chain_key]
    entries = {row.entry_id for row in rows} if extended else set()
    for number in extended:
        row = rows[number]
        chain_key = short_form(row.chain_key)
        if chain_key in line_of:
            raise InputError(
                f"{path}: chain {chain_key} is listed twice, in line {line_of[chain_key]} and as "
                f"{row.chain_key} in line {line_of[row.chain_key]}. Remove one of them."
            )
        if entry_of(chain_key) in entries:
            rows[number] = row._replace(chain_key=chain_key)


def is_chain_key(text: str) -> bool:
    """Whether a text is ``<entry>_<author chain>``, safe as the name of a file."""
    return _CHAIN_KEY.fullmatch(text) is not None


def check_trainable(rows: Iterable[ChainRow], path: Path) -> None:
    """Raise an InputError if the list of chains in ``path`` has none to train on."""
    if not any(row.split == "train" for row in rows):
        raise InputError(
            f"{path}: no chain of split train, so nothing to train on. Put the chains to learn "
            "from into split train. Weights by themselves are evaluated without training: make the "
            "shards with `snakemake --until index`, then run `scalefold evaluate`"
        )


def leaking_clusters(rows: Iterable[ChainRow]) -> list[str]:
    """Clusters with chains of both train and validation, which then measures what was learned."""
    clusters: dict[str, set[str]] = {"train": set(), "validation": set()}
    for row in rows:
        if row.cluster_id is not None and row.split in clusters:
            clusters[row.split].add(row.cluster_id)
    return sorted(clusters["train"] & clusters["validation"])


def read_rejected(path: Path) -> list[Rejected]:
    """Read a table of rejected chains; a missing file is an empty table."""
    if not path.exists():
        return []
    return [Rejected(*fields) for _, fields in read_table(path, REJECTED_COLUMNS)]


def write_rejected(path: Path, rejected: Iterable[Rejected]) -> None:
    """Write a table of rejected chains, atomically, sorted by chain and stage."""
    ordered = sorted(rejected, key=lambda r: (r.chain_key, r.stage))
    write_table(path, REJECTED_COLUMNS, map(astuple, ordered))


def read_table(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of a tab-separated table whose header must be ``columns``.

    Raises
    ------
    InputError
        No such file or none of text, another header, a line of another number of fields, or a
        field with a space at an end.
    """
    lines = _lines(path)
    header = next(lines, "")
    if header.split("\t") != list(columns):
        raise InputError(
            f"{path}: the first line is {header[:80]!r}, expected the tab-separated header "
            f"{' '.join(columns)}.{_other_separator(header)}"
        )
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != len(columns):
            raise InputError(
                f"{path}, line {number}: {len(fields)} tab-separated fields, expected "
                f"{len(columns)} ({', '.join(columns)})."
                + (_other_separator(line) or " An empty last field still needs its tab.")
            )
        if " \t" in line or "\t " in line or " " in (line[0], line[-1]):
            raise InputError(
                f"{path}, line {number}: a field of {fields} begins or ends with a space, which "
                "would be a part of it. Remove the space."
            )
        yield number, fields


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file one by one: those of the PDB's list would take 70 MB."""
    try:
        with path.open(encoding="utf-8-sig") as file:  # Excel writes a byte order mark
            for line in file:
                yield line.removesuffix("\n")
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file. Create it, or correct the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a table of text: {error}.") from error


def _other_separator(line: str) -> str:
    """Return a hint, where a line of a table has something else between its fields than tabs."""
    names = {" ": "spaces", ",": "commas", ";": "semicolons"}
    found = next((name for sign, name in names.items() if sign in line.strip()), None)
    if found is None or "\t" in line:
        return ""
    return f" It has {found} where tabs belong: replace them."


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a tab-separated table with a header, atomically.

    Raises
    ------
    InputError
        The disk is full, or the folder cannot be made or written; an earlier table stays.
    """
    make_folder(path.parent)
    write_bytes(path, table_text(columns, rows).encode())


def table_text(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as `read_table` reads it; tabs and line breaks in a field become spaces."""
    lines = ("\t".join(" ".join(field.split()) for field in row) for row in (columns, *rows))
    return "".join(line + "\n" for line in lines)


def entry_of(chain_key: str) -> str:
    """Return the entry id of a chain key, ``1abc`` of ``1abc_A``.

    The entry is everything before the last underscore: extended ids such as ``pdb_00001abc`` have
    one of their own, author chain names have none.
    """
    return chain_key.rpartition("_")[0]


def short_form(name: str) -> str:
    """Return an entry or a chain key with the entry's four characters, where it has these.

    ``pdb_00001abc`` and ``1abc`` are one entry, by wwPDB's extended and by its first form.
    """
    return name[8:] if _EXTENDED.match(name) else name


def extended_form(entry_id: str) -> str:
    """Return ``pdb_00001abc`` of ``1abc``; other names stay."""
    return f"pdb_0000{entry_id}" if _FOUR_CHARACTERS.fullmatch(entry_id) else entry_id


def folder_hash(entry_id: str) -> str:
    """Return the archive's folder of an entry: its 2nd and 3rd last characters.

    ``1abc`` lies in ``ab``, ``pdb_1abc5678`` in ``67`` (wwPDB's rule for both forms of the id).
    """
    return entry_id[-3:-1]


def mmcif_path(raw: Path, entry_id: str, like: str = ".cif.gz") -> Path:
    """Return where a raw folder holds an entry's structure.

    ``like`` is a path on the mirrors, or the template of one: its ending says the format.
    """
    suffix = next((suffix for suffix in STRUCTURE_SUFFIXES if like.endswith(suffix)), ".cif.gz")
    return raw / "mmcif" / folder_hash(entry_id) / f"{entry_id}{suffix}"


def alignment_folder(raw: Path, chain_key: str) -> Path:
    """Return the folder of a chain's ``a3m`` and ``hhr`` in a raw folder."""
    return raw / "alignments" / chain_key
