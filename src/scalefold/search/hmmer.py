"""HMMER's programs: jackhmmer with a sequence, hmmsearch with an alignment."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Final

import numpy as np

from scalefold.chem.residues import MSA_SYMBOLS
from scalefold.errors import InputError
from scalefold.raw.a3m import encode_sequence, parse_a3m
from scalefold.search.a3m import read_stockholm, stockholm_hits_to_a3m, stockholm_to_a3m
from scalefold.search.binaries import find_binary
from scalefold.search.process import Limits, checked_output, run, run_reading

# AlphaFold2's: stricter filters, one iteration.
JACKHMMER_OPTIONS: Final = (
    *("--noali", "--F1", "0.0005", "--F2", "0.00005", "--F3", "0.0000005"),
    *("--incE", "0.0001", "-E", "0.0001", "-N", "1"),
)
HMMSEARCH_OPTIONS: Final = (
    *("--noali", "--F1", "0.1", "--F2", "0.1", "--F3", "0.1"),
    *("--incE", "100", "-E", "100", "--domE", "100", "--incdomE", "100"),
)
_QUERY: Final = "query.fasta"


def check_fasta_database(database: Path) -> None:
    """Refuse a database that is not a file of sequences, or is empty.

    Raises
    ------
    InputError
        Names the file.
    """
    if not database.is_file():
        raise InputError(f"{database}: no such file of sequences. Correct the database's path")
    with database.open("rb") as file:
        start = file.read(1)
    if start != b">":
        fault = "is empty" if not start else f"begins with {start!r}, expected '>'"
        raise InputError(f"{database}: {fault}: not a FASTA file. Download the database again")


def jackhmmer(
    sequence: str,
    database: Path,
    limits: Limits,
    max_rows: int | None = None,
    options: Sequence[str] = JACKHMMER_OPTIONS,
) -> bytes:
    """Return the a3m alignment that jackhmmer finds; its first row is the query.

    Parameters
    ----------
    database
        FASTA file.
    max_rows
        Most rows to keep, the best, the query included. Others are skipped while jackhmmer writes
        them, and are never in memory or on the disk.
    options
        Command line words, in place of AlphaFold2's.

    Raises
    ------
    InputError
        The sequence has other symbols than letters.
    ToolError
        See `scalefold.search.process.run`; or the result is not an alignment of the sequence.
    """
    encode_sequence(sequence)
    with tempfile.TemporaryDirectory(prefix="scalefold-search-") as folder:
        (Path(folder) / _QUERY).write_text(f">query\n{sequence}\n")
        rows = run_reading(
            [*_words("jackhmmer", limits, options), _QUERY, database.absolute()],
            limits,
            lambda stream: read_stockholm(stream, "jackhmmer", max_rows),
            Path(folder),
        )
    with checked_output("jackhmmer"):
        content = stockholm_to_a3m(rows)
        parse_a3m(content, sequence, "its alignment")
    return content


def hmmsearch(
    alignment: bytes,
    sequence: str,
    database: Path,
    limits: Limits,
    max_rows: int | None = None,
    options: Sequence[str] = HMMSEARCH_OPTIONS,
) -> bytes:
    """Return the a3m alignment of the hits of an alignment's profile, the query first.

    Raises as `jackhmmer`.

    Parameters
    ----------
    alignment
        Alignment of the sequence, as a3m; each of its columns becomes one of the profile.
    sequence, database, limits, max_rows, options
        As in `jackhmmer`.
    """
    stockholm = _aligned_columns(alignment, sequence)
    hits = None if max_rows is None else max(0, max_rows - 1)
    with tempfile.TemporaryDirectory(prefix="scalefold-search-") as name:
        folder = Path(name)
        (folder / "query.sto").write_bytes(stockholm)
        build = [str(find_binary("hmmbuild")), "--amino", "--hand", "-o", "/dev/null"]
        run([*build, "query.hmm", "query.sto"], limits, folder)
        rows = run_reading(
            [*_words("hmmsearch", limits, options), "query.hmm", database.absolute()],
            limits,
            lambda stream: _read_hits(stream, hits),
            folder,
        )
    with checked_output("hmmsearch"):
        content = stockholm_hits_to_a3m(rows, sequence)
        parse_a3m(content, sequence, "its alignment")
    return content


def _words(program: str, limits: Limits, options: Sequence[str]) -> list[str]:
    """Return the command line of a search that writes its alignment to standard output."""
    command = [str(find_binary(program)), "-o", "/dev/null", "-A", "/dev/stdout"]
    return [*command, "--cpu", str(limits.threads), *options]


def _read_hits(stream: IO[bytes], max_rows: int | None) -> dict[bytes, bytes]:
    """Return the rows of the hits; hmmsearch writes nothing if there is none."""
    first = stream.readline()
    return read_stockholm(chain([first], stream), "hmmsearch", max_rows) if first else {}


def _aligned_columns(alignment: bytes, sequence: str) -> bytes:
    """Return the columns of an alignment as Stockholm, each marked as one of the profile."""
    symbols = np.frombuffer(MSA_SYMBOLS.encode(), np.uint8)
    msa = symbols[parse_a3m(alignment, sequence, "the query").msa]
    rows = [b"row%d %s" % (number, row.tobytes()) for number, row in enumerate(msa)]
    columns = b"#=GC RF " + b"x" * len(sequence)
    return b"\n".join([b"# STOCKHOLM 1.0", b"", *rows, columns, b"//", b""])
