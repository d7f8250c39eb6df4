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
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from scalefold.config.data import DataConfig
from scalefold.errors import InputError
from scalefold.fetch.chain_files import RawFile, chain_files
from scalefold.fetch.fetched import Kind, table_tag, update_fetched
from scalefold.fetch.mirrors import Downloader, FetchedFile, UnavailableError
from scalefold.fetch.on_mirrors import check_mirrors
from scalefold.fetch.rsync_stage import pull_files
from scalefold.fetch.shared_alignments import SharedAlignments
from scalefold.io.case_collisions import check_case_collisions
from scalefold.raw.chains import ChainRow
from scalefold.raw.raw_folder import STRUCTURE_SUFFIXES
from scalefold.raw.rejected import Rejected, read_rejected, write_rejected

STAGE: Final = "fetch"
NO_ALIGNMENT: Final = "no alignment"
"""How the reason of a chain begins that may use the alignment of another chain."""


@dataclass(frozen=True)
class FetchSummary:
    """The result of a fetch.

    Parameters
    ----------
    complete
        Keys of the chains all of whose necessary files are there.
    rejected
        Chains that lack a necessary file, and why.
    absent
        Names of alignments and template hits (``pdb70_hits.hhr``) that no mirror has for some
        chains, and the keys of these. Not a fault of a chain that has another alignment.
    failures
        Mirrors, by root, that failed for files which another gave (or that were there), with the
        reason of each file. A mirror that merely lacks a file has not failed.
    num_searched
        Chains for which alignments and template hits were asked.
    num_asked, num_files, num_bytes
        Files that were asked for, those now there, and their size.
    """

    complete: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    absent: dict[str, tuple[str, ...]]
    failures: dict[str, tuple[str, ...]]
    num_searched: int
    num_asked: int
    num_files: int
    num_bytes: int


def fetch(
    chains: Sequence[ChainRow],
    data: DataConfig,
    out: Path,
    *,
    only: Kind | None = None,
    bucket: int | None = None,
    shared: SharedAlignments | None = None,
    downloader: Downloader | None = None,
    console: Console | None = None,
) -> FetchSummary:
    """Bring all raw files of ``chains`` into ``out``.

    A chain needs its entry's mmCIF file and, unless it only serves as a template, at least one of
    the alignments of ``data.alignments``. Alignments and template hits that no mirror has are left
    out; one that fails otherwise (server error, broken connection) rejects its chain, since a
    later try may bring it.

    Parameters
    ----------
    chains
        What to fetch.
    data
        Mirrors, names of alignments and template hits, number of threads.
    out
        Output folder, see the module's text.
    only
        Leave out the other kind, and judge chains by this one alone.
    bucket
        Number of the bucket that ``chains`` are; ``None`` if no other process fetches into ``out``.
    shared
        Which chains ask for alignments that they share; default: each asks for its own.
    downloader
        Default: a new one with its standard patience.
    console
        Where progress is shown; default: standard error.

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
        pull_files(list(jobs.values()), downloader, staging, console)
        _run(list(jobs.values()), downloader, data.download_threads, results, console)
    finally:
        # Also after an interruption: what is complete is on record.
        got = {path: file for path, file in results.items() if isinstance(file, FetchedFile)}
        update_fetched(out / f"fetched{tag}.tsv", got)
        if own_downloader:
            downloader.close()
    if all(isinstance(result, FetchedFile) or result.is_absent for result in results.values()):
        shutil.rmtree(staging, ignore_errors=True)  # else a later try goes on from it
    faults = {row.chain_key: _faults(files[row.chain_key], results) for row in chains}
    summary = _judge(chains, files, results, faults)
    _write_rejected(out / f"rejected{tag}.tsv", chains, summary.rejected)
    is_final = all(r.is_final for r in results.values() if isinstance(r, UnavailableError))
    # A template is of use to other chains only; of them alone nothing can be made.
    wanted = {r.chain_key for r in chains if r.split != "template"} or set(files)
    if wanted.isdisjoint(summary.complete) and (bucket is None or not is_final):
        again = "" if is_final else ", or try again if the network was down"
        raise InputError(
            f"none of {len(wanted)} chains could be fetched; "
            f"{_commonest({key: group for key, group in faults.items() if key in wanted})}. "
            f"Correct data.mirrors or data.alignments{again}."
        )
    return summary


def _run(
    jobs: list[RawFile],
    downloader: Downloader,
    threads: int,
    results: dict[Path, FetchedFile | UnavailableError],
    console: Console | None,
) -> None:
    """Get all files with a bounded number of threads; fills ``results`` as they come."""
    progress = Progress(
        TextColumn("fetch"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files asked for, {task.fields[megabytes]:.1f} MB"),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
    )
    num_bytes = 0

    def get(file: RawFile) -> FetchedFile | UnavailableError:
        try:
            first, *others = file.remotes
            return downloader.get(file.roots, first, file.local, others)
        except UnavailableError as error:
            return error

    with progress, ThreadPoolExecutor(threads, thread_name_prefix="fetch") as pool:
        task = progress.add_task("fetch", total=len(jobs), megabytes=0.0)

        def record(file: RawFile, future: Future[FetchedFile | UnavailableError]) -> None:
            nonlocal num_bytes
            if future.cancelled() or future.exception() is not None:
                return
            results[file.local] = result = future.result()
            num_bytes += result.num_bytes if isinstance(result, FetchedFile) else 0
            progress.update(task, advance=1, megabytes=num_bytes / 1e6)

        futures: list[Future[FetchedFile | UnavailableError]] = []
        try:
            for file in jobs:
                future = pool.submit(get, file)
                future.add_done_callback(lambda done, file=file: record(file, done))  # type: ignore[misc]
                futures.append(future)
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            downloader.cancel()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@dataclass(frozen=True)
class _Fault:
    """Why a chain is rejected: what it has in common with other chains, and its own words."""

    cause: str
    reason: str


def _faults(
    group: Sequence[RawFile], results: dict[Path, FetchedFile | UnavailableError]
) -> list[_Fault]:
    """Return what makes a chain's files insufficient, nothing if they suffice."""
    faults: list[_Fault] = []
    for path in (file.local for file in group):
        failure = results[path]
        if not isinstance(failure, UnavailableError):
            continue
        is_structure = path.name.endswith(STRUCTURE_SUFFIXES)
        name = "its structure" if is_structure else path.name
        if not failure.is_absent:
            faults.append(_Fault(f"{name} could not be had", str(failure)))
        elif is_structure:
            faults.append(_Fault(f"no mirror has {name}", str(failure)))
    alignments = [file.local for file in group if file.local.suffix == ".a3m"]
    absent = [r for r in map(results.get, alignments) if _is_absent(r)]
    if alignments and len(absent) == len(alignments):
        names = " or ".join(path.name for path in alignments)
        reason = f"{NO_ALIGNMENT}: {'; '.join(map(str, absent))}"
        faults.append(_Fault(f"no mirror has {names}", reason))
    return faults


def _is_absent(result: FetchedFile | UnavailableError | None) -> bool:
    return isinstance(result, UnavailableError) and result.is_absent


def _commonest(faults: dict[str, list[_Fault]]) -> str:
    """Name the most frequent cause, the number of its chains, and one of them."""
    first = {f.cause: (key, f.reason) for key in reversed(faults) for f in faults[key]}
    counts = Counter(fault.cause for group in faults.values() for fault in group)
    ((cause, count),) = counts.most_common(1)
    key, reason = first[cause]
    return f"{cause} for {count} of {len(faults)} chains, as for {key}: {reason}"


def _judge(
    chains: Sequence[ChainRow],
    files: dict[str, list[RawFile]],
    results: dict[Path, FetchedFile | UnavailableError],
    faults: dict[str, list[_Fault]],
) -> FetchSummary:
    complete: list[str] = []
    rejected: list[Rejected] = []
    absent: dict[str, list[str]] = {}
    num_searched = 0
    there = [result.num_bytes for result in results.values() if isinstance(result, FetchedFile)]
    for row in chains:
        group = files[row.chain_key]
        outcome = {file.local: results[file.local] for file in group}
        failed = [(p, r) for p, r in outcome.items() if isinstance(r, UnavailableError)]
        alignments = [r for p, r in outcome.items() if p.suffix == ".a3m"]
        num_searched += bool(alignments)
        for path, failure in failed:
            if failure.is_absent and path.suffix in (".a3m", ".hhr"):
                absent.setdefault(path.name, []).append(row.chain_key)
        if faults[row.chain_key]:
            rejected.append(Rejected(row.chain_key, STAGE, faults[row.chain_key][0].reason))
        else:
            complete.append(row.chain_key)
    return FetchSummary(
        complete=tuple(complete),
        rejected=tuple(rejected),
        absent={name: tuple(keys) for name, keys in absent.items()},
        failures=_failures(results.values()),
        num_searched=num_searched,
        num_asked=len(results),
        num_files=len(there),
        num_bytes=sum(there),
    )


def _failures(results: Iterable[FetchedFile | UnavailableError]) -> dict[str, tuple[str, ...]]:
    """Return the reasons why mirrors failed and others were asked, by root."""
    reasons: dict[str, list[str]] = {}
    for result in results:
        if isinstance(result, FetchedFile):
            for root, reason in result.failures.items():
                reasons.setdefault(root, []).append(reason)
    return {root: tuple(said) for root, said in reasons.items()}


def _write_rejected(path: Path, chains: Sequence[ChainRow], rejected: Sequence[Rejected]) -> None:
    """Replace this stage's rows of these chains; all others stay."""
    keys = {row.chain_key for row in chains}
    others = [r for r in read_rejected(path) if r.stage != STAGE or r.chain_key not in keys]
    write_rejected(path, [*others, *rejected])
