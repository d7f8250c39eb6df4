"""jackhmmer's first search inside this process, by pyhmmer: no program is installed or started.

pyhmmer is HMMER's own code, and finds the same hits. Nothing can limit memory inside a process, so
databases must be small. They are read and searched in parts, and time is checked after each.
"""

from __future__ import annotations

import importlib.util
import io
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from scalefold.errors import InputError
from scalefold.raw.a3m import encode_sequence, parse_a3m
from scalefold.search.a3m import read_stockholm, stockholm_to_a3m
from scalefold.search.hmmer import JACKHMMER_OPTIONS, check_fasta_database
from scalefold.search.process import Limits, ToolError, checked_output

MAX_DATABASE_BYTES: Final = 10**9
"""About twice Swiss-Prot with all its isoforms."""
PART_RESIDUES: Final = 10**7
"""A part is searched in less than a second, then the time is checked."""
_SETTINGS: Final = {
    "-E": "E",
    "--domE": "domE",
    "--incE": "incE",
    "--incdomE": "incdomE",
    "--F1": "F1",
    "--F2": "F2",
    "--F3": "F3",
}
"""Options of jackhmmer that are numbers, and pyhmmer's names of them."""
_DEFAULTS: Final = {"incE": 0.001, "incdomE": 0.001}
"""Defaults of jackhmmer; pyhmmer's are those of hmmsearch."""


def check_in_process(database: Path, options: Sequence[str] = JACKHMMER_OPTIONS) -> None:
    """Refuse a search that cannot work.

    Raises
    ------
    InputError
        pyhmmer is not installed, or does not know one of jackhmmer's options; or the database is
        not a FASTA file, is empty, or is too large.
    """
    if importlib.util.find_spec("pyhmmer") is None:
        raise InputError(
            "pyhmmer is not installed: pip install pyhmmer, or search with the tool jackhmmer"
        )
    _settings(options)
    check_fasta_database(database)
    size = database.stat().st_size
    if size > MAX_DATABASE_BYTES:
        raise InputError(
            f"{database}: has {size / 1e9:.1f} GB, more than the {MAX_DATABASE_BYTES / 1e9:g} GB "
            "that pyhmmer may search, since nothing limits its memory: use the tool jackhmmer"
        )


def jackhmmer_in_process(
    sequence: str,
    database: Path,
    limits: Limits,
    max_rows: int | None = None,
    options: Sequence[str] = JACKHMMER_OPTIONS,
    part_residues: int = PART_RESIDUES,
) -> bytes:
    """Return the a3m alignment that jackhmmer finds; its first row is the query.

    Parameters
    ----------
    sequence, database, max_rows
        As in `scalefold.search.hmmer.jackhmmer`.
    limits
        Only the minutes count: memory is not limited, and there is one thread.
    options
        jackhmmer's command line words: thresholds, filters and ``-N 1``.
    part_residues
        Residues of the database that are searched at once.

    Raises
    ------
    InputError
        The sequence has other symbols than letters, or an option is not known here.
    ToolError
        It takes longer than its limit; or HMMER refuses a sequence of the database.
    """
    from pyhmmer import easel, plan7
    from pyhmmer.errors import EaselError, UnexpectedError

    encode_sequence(sequence)
    end = time.monotonic() + limits.minutes * 60.0
    alphabet = easel.Alphabet.amino()
    query = easel.TextSequence(name="query", sequence=sequence).digitize(alphabet)
    pipeline = plan7.Pipeline(alphabet, **_DEFAULTS | _settings(options))
    found = []
    try:
        profile, _, _ = plan7.Builder(alphabet).build(query, pipeline.background)
        with easel.SequenceFile(database, "fasta", digital=True, alphabet=alphabet) as file:
            while part := file.read_block(residues=part_residues):
                hits = pipeline.search_hmm(profile, part)  # type: ignore[arg-type]  # its stub errs
                found.append(hits)
                pipeline.clear()  # or it would count this part's sequences again in the next
                if time.monotonic() > end:
                    raise ToolError(
                        f"pyhmmer took longer than {limits.minutes:g} minutes and was ended: allow "
                        "more, or leave this sequence out"
                    )
        hits = found[0].merge(*found[1:])  # E-values are those of the whole database
        hits.sort()
        rows = hits.to_msa(
            alphabet,
            sequences=[query],
            traces=[plan7.Trace.from_sequence(query)],
            digitize=True,
            all_consensus_cols=True,
        )
        written = io.BytesIO()
        rows.write(written, "pfam")
    except (ValueError, EaselError, UnexpectedError, MemoryError) as error:
        raise ToolError(f"pyhmmer failed on {database}: {error}") from error
    with checked_output("pyhmmer"):
        lines = io.BytesIO(written.getvalue())
        content = stockholm_to_a3m(read_stockholm(lines, "pyhmmer", max_rows))
        parse_a3m(content, sequence, "its alignment")
    return content


def _settings(options: Sequence[str]) -> dict[str, Any]:
    """Return pyhmmer's settings of jackhmmer's command line words."""
    words, settings = iter(options), {}
    for word in words:
        if word == "--noali":
            continue
        try:
            value = float(next(words, "nothing"))
        except ValueError:
            value = math.nan
        if word in _SETTINGS and value >= 0.0:
            settings[_SETTINGS[word]] = value
        elif (word, value) != ("-N", 1.0):
            raise InputError(
                f"pyhmmer does not know the options {' '.join(options)}, from {word} on: it takes "
                f"{', '.join(_SETTINGS)} with a number, and -N 1. Use the tool jackhmmer"
            )
    return settings
