"""Raw folder to shard folder: all stages and all buckets, on one machine.

A workflow runs the stages itself, a job a bucket; this does the same in one call.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from scalefold.config.schema import Config
from scalefold.raw.chains import read_chains
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import filled_buckets
from scalefold.shards.manifest import Manifest
from scalefold.shards.pack_alignments import pack_alignments
from scalefold.shards.pack_index import pack_index
from scalefold.shards.pack_structures import pack_structures

__all__ = ["in_processes", "pack", "pack_alignments", "pack_index", "pack_structures"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Stage = Callable[[Config, Path, Path, int, Console | None], object]


def pack(
    config: Config, raw: Path, out: Path, jobs: int = 1, console: Console | None = None
) -> Manifest:
    """Pack all chains of ``config.data.chains``.

    Parameters
    ----------
    jobs
        Buckets packed at a time, each in a process of its own. The result does not depend on it.
    console
        Where progress is shown, a bar a stage over all buckets; default: standard error.

    Raises
    ------
    InputError
        See :func:`pack_structures`, :func:`pack_alignments`, :func:`pack_index`.
    """
    chains = read_chains(config.data.chains)
    config = with_bucket_count(config, out, chains)
    buckets = filled_buckets(chains, config.data.num_buckets)
    console = console or Console(stderr=True)
    for name, stage in (("structures", pack_structures), ("alignments", pack_alignments)):
        work = partial(_quiet, stage, config, raw, out)
        with in_processes(work, buckets, jobs) as results:
            for _ in track(
                results, description=f"{name}, buckets", total=len(buckets), console=console
            ):
                pass
    return pack_index(config, raw, out, console)


@contextmanager
def in_processes(
    work: Callable[[_Item], _Result], buckets: Sequence[_Item], jobs: int
) -> Iterator[Iterable[_Result]]:
    """Give what is made bucket by bucket, in this process or in ``jobs`` others."""
    if jobs == 1:
        yield map(work, buckets)
        return
    # Spawned, since Arrow and others may hold threads that a fork would lose.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield pool.map(work, buckets)


def _quiet(stage: _Stage, config: Config, raw: Path, out: Path, bucket: int) -> None:
    """Run a stage without a progress bar of its own, beside that over all buckets."""
    stage(config, raw, out, bucket, Console(quiet=True))
