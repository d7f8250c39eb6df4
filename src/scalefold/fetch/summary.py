"""The result of a fetch: which chains are complete, and why others are rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scalefold.fetch.chain_files import RawFile
from scalefold.fetch.mirrors import FetchedFile, UnavailableError
from scalefold.raw.chains import ChainRow
from scalefold.raw.raw_folder import STRUCTURE_SUFFIXES
from scalefold.raw.rejected import Rejected

STAGE: Final = "fetch"
NO_ALIGNMENT: Final = "no alignment"
"""Begins the reason of a chain that may use the alignment of another chain."""


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
        chains, and the keys of these chains. A chain may have another alignment.
    failures
        Reasons of mirrors, by root, that failed for a file that another mirror gave, or that was
        there. A mirror that lacks a file has not failed.
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


@dataclass(frozen=True)
class Fault:
    """Why a chain is rejected: a cause that other chains may share, and its own reason."""

    cause: str
    reason: str


def find_faults(
    group: Sequence[RawFile], results: dict[Path, FetchedFile | UnavailableError]
) -> list[Fault]:
    """Return why a chain's files are not enough; nothing if they are."""
    faults: list[Fault] = []
    for path in (file.local for file in group):
        failure = results[path]
        if not isinstance(failure, UnavailableError):
            continue
        is_structure = path.name.endswith(STRUCTURE_SUFFIXES)
        name = "its structure" if is_structure else path.name
        if not failure.is_absent:
            faults.append(Fault(f"{name} could not be downloaded", str(failure)))
        elif is_structure:
            faults.append(Fault(f"no mirror has {name}", str(failure)))
    alignments = [file.local for file in group if file.local.suffix == ".a3m"]
    absent = [r for r in map(results.get, alignments) if _is_absent(r)]
    if alignments and len(absent) == len(alignments):
        names = " or ".join(path.name for path in alignments)
        reason = f"{NO_ALIGNMENT}: {'; '.join(map(str, absent))}"
        faults.append(Fault(f"no mirror has {names}", reason))
    return faults


def _is_absent(result: FetchedFile | UnavailableError | None) -> bool:
    return isinstance(result, UnavailableError) and result.is_absent


def commonest(faults: dict[str, list[Fault]]) -> str:
    """Name the most frequent cause, the number of its chains, and one of them."""
    first = {f.cause: (key, f.reason) for key in reversed(faults) for f in faults[key]}
    counts = Counter(fault.cause for group in faults.values() for fault in group)
    ((cause, count),) = counts.most_common(1)
    key, reason = first[cause]
    return f"{cause} for {count} of {len(faults)} chains, as for {key}: {reason}"


def summarize(
    chains: Sequence[ChainRow],
    files: dict[str, list[RawFile]],
    results: dict[Path, FetchedFile | UnavailableError],
    faults: dict[str, list[Fault]],
) -> FetchSummary:
    """Sum up the results of all files, chain by chain."""
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
