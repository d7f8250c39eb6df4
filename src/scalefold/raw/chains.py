"""The list of chains to use: ``chains.tsv``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

from scalefold.config.data import DataConfig
from scalefold.errors import InputError
from scalefold.raw.chain_key import entry_of, is_chain_key, short_form
from scalefold.raw.table import read_table

Split = Literal["train", "validation", "template"]
CHAIN_COLUMNS: Final = ("chain_key", "split", "cluster_id")


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


def read_chains(path: Path, key: str = "data.chains") -> list[ChainRow]:
    """Read ``chains.tsv``: a header line and one line a chain, tab-separated.

    ``key`` names the list in messages. If an entry is listed by both forms of its name, its chains
    get the short one.

    Raises
    ------
    InputError
        The file is missing, has another header, a malformed chain key, an unknown split, a chain
        twice, or no chain. The message names the line.
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
    """Give chains the short form of their entry if another line has it.

    A list with extended forms alone stays as it is, like its mirrors and its shards.
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


def check_trainable(rows: Iterable[ChainRow], path: Path) -> None:
    """Raise an InputError if the list of chains in ``path`` has none to train on."""
    if not any(row.split == "train" for row in rows):
        raise InputError(
            f"{path}: no chain of split train, so nothing to train on. Put the chains to learn "
            "from into split train. Weights by themselves are evaluated without training: make the "
            "shards with `snakemake --until index`, then run `scalefold evaluate`"
        )


def leaking_clusters(rows: Iterable[ChainRow]) -> list[str]:
    """Clusters with chains of both train and validation, which make validation too easy."""
    clusters: dict[str, set[str]] = {"train": set(), "validation": set()}
    for row in rows:
        if row.cluster_id is not None and row.split in clusters:
            clusters[row.split].add(row.cluster_id)
    return sorted(clusters["train"] & clusters["validation"])


def with_splits(rows: list[ChainRow], data: DataConfig) -> list[ChainRow]:
    """Return the lines of ``data.chains`` with the splits of ``data.splits``, if that is given.

    So packed chains can be split anew. Chains that ``data.splits`` does not list are templates.

    Parameters
    ----------
    rows
        All lines of ``data.chains``.
    data
        Names both lists.

    Raises
    ------
    InputError
        ``data.splits`` is not a list of chains, or ``data.chains`` does not have one of its samples
        as a sample of the same cluster.
    """
    if data.splits is None:
        return rows
    later = {short_form(row.chain_key): row for row in read_chains(data.splits, "data.splits")}
    known = {short_form(row.chain_key): row for row in rows}
    for key, row in later.items():
        other = known.get(key)
        if row.split == "template":
            continue
        if other is None or other.split == "template":
            there = "not listed" if other is None else "a template"
            raise InputError(
                f"data.splits: {data.splits}: {key} is for {row.split}, and {there} in "
                f"data.chains, {data.chains}. List it there for training, so that its alignment is "
                "packed"
            )
        if row.cluster_id != other.cluster_id:
            raise InputError(
                f"data.splits: {data.splits}: {key} is of cluster {row.cluster_id or 'none'!r}, in "
                f"data.chains, {data.chains}, of {other.cluster_id or 'none'!r}. Clusters are "
                "packed: make this list from the packed shards without --clusters"
            )
    return [
        row._replace(split=later[key].split if key in later else "template")
        for key, row in known.items()
    ]
