"""One step of a search: its program on its databases for one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scalefold.config.search import SearchStepConfig
from scalefold.search import hhsuite, hmmer, hmmer_in_process, mmseqs
from scalefold.search.binaries import find_binary
from scalefold.search.process import Limits

_PROGRAMS: Final = {
    "jackhmmer": ("jackhmmer",),
    "pyhmmer": (),
    "hmmsearch": ("hmmbuild", "hmmsearch"),
    "hhblits": ("hhblits",),
    "hhsearch": ("hhsearch",),
    "mmseqs": ("mmseqs",),
    "mmseqs_gpu": ("mmseqs",),
}


def check_step(step: SearchStepConfig) -> None:
    """Refuse a step that cannot work: a program or database that is missing, or an empty database.

    Raises
    ------
    InputError
        Names the file, or the package to install.
    """
    for program in _PROGRAMS[step.tool]:
        find_binary(program)
    for database in step.databases:
        if step.tool in ("hhblits", "hhsearch"):
            hhsuite.check_hh_database(database)
        elif step.tool in ("jackhmmer", "hmmsearch"):
            hmmer.check_fasta_database(database)
        elif step.tool == "pyhmmer":
            options = _options(step, hmmer.JACKHMMER_OPTIONS)
            hmmer_in_process.check_in_process(database, options)
        elif step.tool == "mmseqs":
            mmseqs.check_mmseqs_database(database)
        else:
            mmseqs.check_gpu(database)


def result_path(folder: Path, step: SearchStepConfig) -> Path:
    """Return where a step's result lies in a chain's folder."""
    kind = "hhr" if step.tool == "hhsearch" else "a3m"
    return folder / kind / f"{step.name}.{kind}"


def run_step(step: SearchStepConfig, sequence: str, query: bytes, threads: int) -> bytes:
    """Return a step's checked result: an a3m alignment, of hhsearch an hhr file.

    Parameters
    ----------
    query
        An alignment of the sequence as a3m, for the programs that search with one.

    Raises
    ------
    ToolError
        It fails, takes more than its limits, or writes no result.
    """
    limits = Limits(step.max_minutes, step.max_memory_gigabytes, threads)
    first = step.databases[0]
    if step.tool == "jackhmmer":
        options = _options(step, hmmer.JACKHMMER_OPTIONS)
        return hmmer.jackhmmer(sequence, first, limits, step.max_rows, options)
    if step.tool == "pyhmmer":
        options = _options(step, hmmer.JACKHMMER_OPTIONS)
        return hmmer_in_process.jackhmmer_in_process(
            sequence, first, limits, step.max_rows, options
        )
    if step.tool == "hmmsearch":
        options = _options(step, hmmer.HMMSEARCH_OPTIONS)
        return hmmer.hmmsearch(query, sequence, first, limits, step.max_rows, options)
    if step.tool == "hhsearch":
        options = _options(step, hhsuite.HHSEARCH_OPTIONS)
        return hhsuite.hhsearch(query, sequence, step.databases, limits, options)
    if step.tool == "hhblits":
        options = _options(step, hhsuite.HHBLITS_OPTIONS)
        alone = f">query\n{sequence}\n".encode()
        found = hhsuite.hhblits(alone, sequence, step.databases, limits, options)
    else:
        options = _options(step, mmseqs.MMSEQS_OPTIONS)
        use_gpu = step.tool == "mmseqs_gpu"
        found = mmseqs.mmseqs(sequence, first, limits, options, use_gpu)
    return _first_rows(found, step.max_rows)


def _options(step: SearchStepConfig, default: Sequence[str]) -> Sequence[str]:
    return default if step.options is None else step.options


def _first_rows(content: bytes, max_rows: int | None) -> bytes:
    if max_rows is None:
        return content
    records = (b"\n" + content).split(b"\n>", max_rows + 1)[1 : max_rows + 1]
    return b"".join(b">" + record.rstrip(b"\n") + b"\n" for record in records)
