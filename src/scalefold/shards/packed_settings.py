"""Was a finished shard folder packed with a configuration's settings and list of chains? The folder
says so itself: raw files are not read.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc

from scalefold.config.identity import packing_hashes
from scalefold.config.schema import Config
from scalefold.errors import InputError, counted
from scalefold.raw.chains import ChainRow, read_chains, with_splits
from scalefold.raw.rejected import read_rejected
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.manifest import Manifest
from scalefold.shards.repack_hint import PACK_ALL_AGAIN
from scalefold.shards.schema import INDEX_FILE, MANIFEST_FILE, REJECTED_FILE
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.summary import changed_settings, in_words, summary_heads

logger = logging.getLogger(__name__)

_CLOCKS_DIFFER_SECONDS: Final = 10.0
"""Clocks of a cluster's machines differ by less."""


def other_settings(folder: Path, config: Config) -> dict[str, str]:
    """Return `changed_settings` of a folder: empty if it was packed with the configuration's
    settings.

    Raises
    ------
    InputError
        There are no complete shards.
    """
    packed_with = Manifest.read(folder).config_hash
    config = with_bucket_count(config, folder)
    if packed_with in packing_hashes(config):
        return {}
    return changed_settings(_settings(folder, packed_with), config)


def _settings(folder: Path, config_hash: str) -> dict[str, Any]:
    """Return what a hash stands for, which summaries of buckets say; nothing, if none does."""
    return next((h.settings for h in summary_heads(folder) if h.config_hash == config_hash), {})


def check_origin(folder: Path, config: Config) -> None:
    """Refuse shards of other settings or of another list of chains; for the workflow.

    Raises
    ------
    InputError
        Says what differs, and how the workflow packs again. Or there are no complete shards, or
        their manifest has a time in the future, with which Snakemake lets no training succeed.
    """
    _check_time(folder / MANIFEST_FILE)
    if found := packing_differences(folder, config):
        raise InputError(
            f"{folder} was packed with {'; '.join(found)}. Set that back, or pack again: "
            f"{PACK_ALL_AGAIN}"
        )


def _check_time(manifest: Path) -> None:
    ahead = manifest.stat().st_mtime - time.time() if manifest.exists() else 0.0
    if ahead > _CLOCKS_DIFFER_SECONDS:
        raise InputError(
            f"{manifest}: its time is {ahead:.0f} s in the future, so Snakemake takes all that is "
            f"made of it for older. Run `touch {shlex.quote(str(manifest))}`, and see whether this "
            "machine's clock or that of the file system is wrong"
        )


def warn_of_other_settings(folder: Path, config: Config) -> None:
    """Warn of what `check_origin` refuses; for commands by hand, as with a colleague's shards."""
    for difference in packing_differences(folder, config):
        logger.warning("%s was packed with %s. The shards' settings are used", folder, difference)


def packing_differences(folder: Path, config: Config) -> list[str]:
    """Say how settings and list of chains differ from the configuration's, if they do."""
    found = []
    if changed := other_settings(folder, config):
        found.append(f"other settings: {in_words(changed)}")
    listed = config.data.chains
    # By hand, one may have shards without their list of chains.
    if listed.is_file() and (
        chains := other_chains(folder, with_splits(read_chains(listed), config.data))
    ):
        found.append(
            f"another list of chains: {counted(len(chains), 'line')} changed in {listed}, such as "
            f"that of {min(chains)}"
        )
    return found


def other_chains(folder: Path, listed: Iterable[ChainRow]) -> set[str]:
    """Return the keys of chains whose line in the list is not the one that they were packed with.

    Predicted structures are in no list.

    Of a chain that was set aside only the key is known, and that it is no sample.

    Raises
    ------
    InputError
        Index or table of rejected chains are missing or damaged.
    """
    index = ShardFile(folder / INDEX_FILE, "index").table()
    index = index.filter(pc.equal(index["origin"], "experimental"))
    columns = (index[name].to_pylist() for name in ChainRow._fields)
    packed, wanted = set(zip(*columns, strict=True)), set(listed)
    set_aside = {rejected.chain_key for rejected in read_rejected(folder / REJECTED_FILE)}
    otherwise = {key: tuple(facts) for key, *facts in packed - wanted}

    def was_set_aside(row: ChainRow) -> bool:
        as_template = ("template", row.cluster_id)  # or not packed at all
        return (
            row.chain_key in set_aside and otherwise.get(row.chain_key, as_template) == as_template
        )

    unlike = wanted - packed
    changed = otherwise.keys() | {row.chain_key for row in unlike}
    return changed - {row.chain_key for row in unlike if was_set_aside(row)}
