"""Fetch the raw files of a list of chains: mmCIF, alignments, template hits.

Layout of the output folder::

    mmcif/<hash>/<entry>.cif.gz              or as data.mirrors.mmcif_path ends
    alignments/<chain_key>/a3m/<name>.a3m
    alignments/<chain_key>/hhr/<name>.hhr
    fetched.tsv                              path, bytes, sha256, source
    rejected.tsv                             chain_key, stage, reason

Runs may be interrupted at any moment and started again: complete files are kept, broken downloads
go on where they ended. Several processes may fetch different buckets, or structures and alignments,
into one folder: each then has its own tables, ``fetched-structures-<bucket>.tsv`` and so on.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from scalefold.config.data import DataConfig
from scalefold.errors import InputError
from scalefold.fetch.chain_files import RawFile, chain_files
from scalefold.fetch.fetched import Kind, table_tag, update_fetched
from scalefold.fetch.mirrors import Downloader, FetchedFile, UnavailableError
from scalefold.fetch.on_mirrors import check_mirrors
from scalefold.fetch.rsync_stage import pull_files
from scalefold.fetch.shared_alignments import SharedAlignments
from scalefold.fetch.summary import STAGE, FetchSummary, commonest, find_faults, summarize
from scalefold.io.case_collisions import check_case_collisions
from scalefold.progress import LiveLine
from scalefold.raw.chains import ChainRow
from scalefold.raw.rejected import Rejected, read_rejected, write_rejected


def fetch(
    chains: Sequence[ChainRow],
    data: DataConfig,
    out: Path,
    *,
    only: Kind | None = None,
    bucket: int | None = None,
    shared: SharedAlignments | None = None,
    downloader: Downloader | None = None,
) -> FetchSummary:
    """Bring all raw files of ``chains`` into ``out``.

    A chain needs its entry's mmCIF file and, unless it only serves as a template, at least one of
    the alignments of ``data.alignments``. Alignments and template hits that no mirror has are left
    out; one that fails otherwise (server error, broken connection) rejects its chain, since a
    later try may bring it.

    Parameters
    ----------
    data
        Mirrors, names of alignments and template hits, number of threads.
    only
        Leave out the other kind, and judge chains by this one alone.
    bucket
        Number of the bucket that ``chains`` are; ``None`` if no other process fetches into ``out``.
    shared
        Which chains ask for alignments that they share; default: each asks for its own.
    downloader
        Default: a new one with its standard patience.

    Raises
    ------
    InputError
        A file cannot be written, a mirror is not understood or a folder that is not there, two
        chains have the same folder (`check_case_collisions`), or none of the chains for training
        and validation is complete (of a bucket: and another try may bring one).
    """
    check_mirrors(data, only)
    files = {row.chain_key: chain_files(row, data, out, only, shared) for row in chains}
    jobs = {file.local: file for group in files.values() for file in group}
    check_case_collisions(jobs, out)
    tag = table_tag(only, bucket)
    own_downloader = downloader is None
    downloader = downloader or Downloader(
        limit_seconds=data.max_download_seconds,
        connections=data.download_threads,
        part_suffix=f".part{tag}",
        max_unpacked_bytes=data.max_structure_bytes,
    )
    results: dict[Path, FetchedFile | UnavailableError] = {}
    staging = out / f".rsync{tag}"
    try:
        pull_files(list(jobs.values()), downloader, staging)
        _run(list(jobs.values()), downloader, data.download_threads, results)
    finally:
        # Also after an interruption: what is complete is on record.
        got = {path: file for path, file in results.items() if isinstance(file, FetchedFile)}
        update_fetched(out / f"fetched{tag}.tsv", got)
        if own_downloader:
            downloader.close()
    if all(isinstance(result, FetchedFile) or result.is_absent for result in results.values()):
        shutil.rmtree(staging, ignore_errors=True)  # else a later try goes on from it
    faults = {row.chain_key: find_faults(files[row.chain_key], results) for row in chains}
    summary = summarize(chains, files, results, faults)
    _write_rejected(out / f"rejected{tag}.tsv", chains, summary.rejected)
    is_final = all(r.is_final for r in results.values() if isinstance(r, UnavailableError))
    # A template is of use to other chains only; of them alone nothing can be made.
    wanted = {r.chain_key for r in chains if r.split != "template"} or set(files)
    if wanted.isdisjoint(summary.complete) and (bucket is None or not is_final):
        again = "" if is_final else ", or try again if the network was down"
        raise InputError(
            f"none of {len(wanted)} chains could be fetched; "
            f"{commonest({key: group for key, group in faults.items() if key in wanted})}. "
            f"Correct the list of chains, data.mirrors or data.alignments{again}."
        )
    return summary


def _run(
    jobs: list[RawFile],
    downloader: Downloader,
    threads: int,
    results: dict[Path, FetchedFile | UnavailableError],
) -> None:
    """Get all files with a bounded number of threads; fills ``results``, also if one fails."""

    def get(file: RawFile) -> FetchedFile | UnavailableError:
        try:
            first, *others = file.remotes
            return downloader.get(file.roots, first, file.local, others)
        except UnavailableError as error:
            return error

    futures: dict[Future[FetchedFile | UnavailableError], Path] = {}
    num_bytes = 0
    line = LiveLine("fetching", len(jobs), seconds_between_lines=30)
    with line, ThreadPoolExecutor(threads, thread_name_prefix="fetch") as pool:
        try:
            for file in jobs:
                futures[pool.submit(get, file)] = file.local
            for done, future in enumerate(as_completed(futures), 1):
                result = future.result()
                num_bytes += result.num_bytes if isinstance(result, FetchedFile) else 0
                line.show(done, f"{num_bytes / 1e6:.1f} MB")
        except BaseException:
            downloader.cancel()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        finally:
            for future, path in futures.items():
                if future.done() and not future.cancelled() and future.exception() is None:
                    results[path] = future.result()


def _write_rejected(path: Path, chains: Sequence[ChainRow], rejected: Sequence[Rejected]) -> None:
    """Replace this stage's rows of these chains; all others stay."""
    keys = {row.chain_key for row in chains}
    others = [r for r in read_rejected(path) if r.stage != STAGE or r.chain_key not in keys]
    write_rejected(path, [*others, *rejected])
