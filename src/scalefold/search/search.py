"""Search alignments and template hits for sequences, into the folders that packing reads.

Layout of the output folder::

    alignments/<name>/a3m/<name of the step>.a3m
    alignments/<name>/hhr/<name of the step>.hhr
    alignments/<name>/searched.json          what was done, for this sequence
    searching/<name>/                        results of a sequence that is not complete
    rejected-search.tsv                      chain_key, stage, reason

A search can be interrupted and started again at any moment: complete sequences and complete steps
are not searched again. A sequence's results count when all its steps have succeeded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.progress import LiveLine
from scalefold.raw.fasta import FastaRecord
from scalefold.raw.rejected import Rejected, cause_first, write_rejected
from scalefold.search.one_sequence import Searcher
from scalefold.search.process import ToolError
from scalefold.search.steps import check_step

STAGE: Final = "search"
_SUSPICIOUS: Final = 10
"""If none of so many sequences has a result, a database or the configuration is wrong."""


@dataclass
class SearchSummary:
    """The outcome of a search.

    Attributes
    ----------
    outcomes : Counter of str
        Number of sequences that were ``searched``, ``given``, with the ``query alone``, or
        ``searched before``.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    rejected: list[Rejected] = field(default_factory=list)


def search(
    records: Sequence[FastaRecord],
    config: Config,
    out: Path,
    *,
    part: int | None = None,
    set_aside: Sequence[Rejected] = (),
) -> SearchSummary:
    """Search each distinct sequence once; records of the same sequence get copies.

    Parameters
    ----------
    config
        Sections ``search`` and ``data``.
    out
        Raw folder, see the module's text.
    part
        Number in the name of the table of rejected records; ``None`` if no other process searches
        into ``out``.
    set_aside
        Records that could not be read, for the same table.

    Raises
    ------
    InputError
        There is no section ``search``, a program or database is missing or empty, nothing can be
        written, or none of ten or more sequences has a result.
    """
    if config.search is None:
        raise InputError(
            "the configuration has no section search: add its steps (tool, databases, name), which "
            "docs/search.md describes"
        )
    searcher = Searcher(config, config.search, out)
    summary = SearchSummary(rejected=list(set_aside))
    by_sequence: dict[str, list[FastaRecord]] = {}
    for record in records:
        by_sequence.setdefault(record.sequence, []).append(record)
    if not all(searcher.is_done(record) or searcher.is_given(record) for record in records):
        for step in config.search.steps:
            check_step(step)
    done = 0
    line = LiveLine("search", len(records), seconds_between_lines=30)
    try:
        with line:
            for group in by_sequence.values():
                first, *others = group
                try:
                    summary.outcomes[searcher.search(first)] += 1
                    for other in others:
                        searcher.copy(first, other)
                        summary.outcomes["copied from the same sequence"] += 1
                except ToolError as error:
                    reason = cause_first(str(error))
                    summary.rejected += [Rejected(r.name, STAGE, reason) for r in group]
                done += len(group)
                line.show(done, first.name)
    finally:
        tag = "" if part is None else f"-{part:05d}"
        write_rejected(out / f"rejected-search{tag}.tsv", summary.rejected)
    if len(records) >= _SUSPICIOUS and not summary.outcomes:
        example = summary.rejected[-1]
        raise InputError(
            f"none of {len(records)} sequences has a result, which points to a database or the "
            f"configuration; {example.chain_key}: {example.reason}"
        )
    return summary
