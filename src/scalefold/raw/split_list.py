"""A second list of the same chains, whose splits count: packed chains need no packing for it."""

from __future__ import annotations

from scalefold.config.data import DataConfig
from scalefold.errors import InputError
from scalefold.raw.chains import ChainRow, read_chains, short_form


def with_splits(rows: list[ChainRow], data: DataConfig) -> list[ChainRow]:
    """Return the lines of ``data.chains`` with the splits of ``data.splits``, if that is a list.

    Chains that it does not list are templates.

    Parameters
    ----------
    rows
        All lines of ``data.chains``.
    data
        Names both lists.

    Raises
    ------
    InputError
        It is no list of chains; or one of its samples is no sample of ``data.chains``, or is of
        another cluster there.
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
