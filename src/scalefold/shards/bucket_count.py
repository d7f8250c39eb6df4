"""How many buckets a run has: as configured, else as packed before, else by its list of chains."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection
from pathlib import Path
from typing import Final

from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.raw.chains import ChainRow, read_chains
from scalefold.shards.manifest import Manifest
from scalefold.shards.summary import summary_heads

MOST_BUCKETS: Final = 400
_CHAINS_OF_PDB: Final = 540_000


def default_bucket_count(num_chains: int) -> int:
    """Return the number of buckets for this many chains: 400 for the PDB, 6 for a hundred.

    Number and size of the buckets grow with the root of the list.
    """
    share = math.sqrt(num_chains / _CHAINS_OF_PDB)
    return max(1, min(MOST_BUCKETS, math.ceil(MOST_BUCKETS * share)))


def with_bucket_count(
    config: Config, shards: Path, chains: Collection[ChainRow] | None = None
) -> Config:
    """Return a configuration whose ``data.buckets`` is a number.

    Parameters
    ----------
    config
        One that sets ``data.buckets`` is returned as it is.
    shards
        Shard folder, which may be absent. What was packed there keeps its number.
    chains
        The list of chains; default: it is read, if there is one.
    """
    if config.data.buckets is not None:
        return config
    buckets = packed_bucket_count(shards)
    if buckets is None:
        if chains is None and config.data.chains.is_file():
            chains = read_chains(config.data.chains)
        buckets = MOST_BUCKETS if chains is None else default_bucket_count(len(chains))
    return config.model_copy(update={"data": config.data.model_copy(update={"buckets": buckets})})


def packed_bucket_count(shards: Path) -> int | None:
    """Return the number of buckets that a folder was packed with, None if nothing records it.

    Summaries record it. Those of the finished folder count, else the latest.
    """
    finished = None
    with contextlib.suppress(InputError):
        finished = Manifest.read(shards).config_hash
    latest = None
    for head in summary_heads(shards):
        buckets = head.settings.get("data.buckets")
        if type(buckets) is not int or buckets < 1:
            continue
        if head.config_hash == finished:
            return buckets
        latest = latest or buckets
        if finished is None:
            break
    return latest
