"""Buckets: the unit of work of fetching and packing."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from scalefold.errors import InputError
from scalefold.raw.chains import ChainRow


def bucket_of(entry_id: str, num_buckets: int) -> int:
    """Return an entry's bucket: XXH3-64 of its id, modulo the number of buckets.

    By entry, so that the chains of one structure file are packed together. The same on every
    machine and in every version.
    """
    return xxhash.xxh3_64_intdigest(entry_id.encode()) % num_buckets


def bucket_chains(chains: Iterable[ChainRow], bucket: int, num_buckets: int) -> list[ChainRow]:
    """Return the chains of one bucket, sorted by chain key.

    Raises
    ------
    InputError
        There is no bucket of this number.
    """
    if not 0 <= bucket < num_buckets:
        raise InputError(
            f"bucket {bucket} does not exist: data.buckets is {num_buckets}, so buckets are 0 to "
            f"{num_buckets - 1}"
        )
    chosen = [row for row in chains if bucket_of(row.entry_id, num_buckets) == bucket]
    return sorted(chosen, key=lambda row: row.chain_key)


def filled_buckets(chains: Iterable[ChainRow], num_buckets: int) -> list[int]:
    """Return the numbers of the buckets that have at least one chain, ascending."""
    return sorted({bucket_of(row.entry_id, num_buckets) for row in chains})
