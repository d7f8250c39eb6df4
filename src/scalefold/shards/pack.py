"""Raw folder to shard folder: all stages and all buckets, on one machine.

A workflow runs the stages itself, a job a bucket; this does the same in one call.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from rich.console import Console

from scalefold.config.schema import Config
from scalefold.raw.chains import read_chains
from scalefold.shards.buckets import filled_buckets
from scalefold.shards.manifest import Manifest
from scalefold.shards.pack_alignments import pack_alignments
from scalefold.shards.pack_index import pack_index
from scalefold.shards.pack_structures import pack_structures

__all__ = ["pack", "pack_alignments", "pack_index", "pack_structures"]

_Stage = Callable[[Config, Path, Path, int, Console | None], object]


def pack(
    config: Config, raw: Path, out: Path, jobs: int = 1, console: Console | None = None
) -> Manifest:
    """Pack all chains of ``config.data.chains``.

    Parameters
    ----------
    config
        Sections ``data`` and ``shards``.
    raw, out
        Raw folder, shard folder.
    jobs
        Buckets packed at a time, each in a process of its own. The result does not depend on it.
    console
        Where progress is shown (with one job); default: standard error.

    Returns
    -------
    Manifest
        Of the finished folder.

    Raises
    ------
    InputError
        See :func:`pack_structures`, :func:`pack_alignments`, :func:`pack_index`.
    """
    buckets = filled_buckets(read_chains(config.data.chains), config.data.buckets)
    for stage in (pack_structures, pack_alignments):
        _run(stage, config, raw, out, buckets, jobs, console)
    return pack_index(config, raw, out)


def _run(
    stage: _Stage,
    config: Config,
    raw: Path,
    out: Path,
    buckets: Sequence[int],
    jobs: int,
    console: Console | None,
) -> None:
    if jobs == 1:
        for bucket in buckets:
            stage(config, raw, out, bucket, console)
        return
    # Spawned, since Arrow and others may hold threads that a fork would lose.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for _ in pool.map(partial(_quiet, stage, config, raw, out), buckets):
            pass


def _quiet(stage: _Stage, config: Config, raw: Path, out: Path, bucket: int) -> None:
    """Run a stage without a progress bar: those of several processes would overwrite each other."""
    stage(config, raw, out, bucket, Console(quiet=True))
