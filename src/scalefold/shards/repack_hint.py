"""How to make a damaged or missing file of a shard folder again, for error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scalefold.shards.schema import bucket_file

PACK_ALL_AGAIN: Final = (
    "in the workflow, give the same snakemake command with --forcerun fetch_structures "
    "fetch_alignments (files that were fetched are kept)"
)
"""How shards of other settings or of another list of chains are fixed, for errors."""

PACK_ALIGNMENTS_AGAIN: Final = (
    "Pack the alignments of all buckets again: in the workflow, give the same snakemake command "
    "with --forcerun fetch_alignments (files that were fetched are kept); by hand `scalefold pack` "
    "with the run's -c, --raw and --out"
)
"""How msa shards of an earlier version are converted, for errors."""

_STAGES: Final = {"chain": "structures", "msa": "alignments", "hits": "alignments"}


def pack_command(file: str) -> str:
    """The stage of packing that writes a file of a shard folder, as a command."""
    family, bucket = bucket_file(file) or ("", 0)
    if family in _STAGES:
        return f"`scalefold pack --stage {_STAGES[family]} --bucket {bucket}`"
    return "`scalefold pack --stage index`"


def repack_hint(path: Path) -> str:
    """How a damaged or missing file of a shard folder is fixed, for errors."""
    command = pack_command(path.name)
    index = "" if command.endswith("index`") else ", then `scalefold pack --stage index`"
    return (
        f"Restore it from a copy, or pack it again: in the workflow delete the file and give "
        f"the same snakemake command, by hand {command} with the run's -c, --raw and --out{index}."
    )
