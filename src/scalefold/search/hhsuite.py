"""HH-suite's programs: hhblits, hhsearch, hhalign, hhmake, cstranslate.

Inputs and outputs are checked, since HH-suite leaves out a symbol that it does not know, with no
more than a warning.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scalefold.errors import InputError
from scalefold.raw.a3m import encode_sequence, parse_a3m
from scalefold.raw.hhr import HhrHit, parse_hhr
from scalefold.search.a3m import query_of, rename_query
from scalefold.search.binaries import find_binary, find_hhsuite_data
from scalefold.search.ffindex import check_files, data_file, index_file
from scalefold.search.hhm import ProfileHmm, parse_hhm
from scalefold.search.process import Limits, ToolError, checked_output, run

_MAX_ROWS: Final = "1000000"
MAX_COLUMNS: Final = 19_999
"""Most columns of a profile. Programs cut off a longer one, with no more than a warning."""
# AlphaFold2's, but for those that are HH-suite's own.
HHBLITS_OPTIONS: Final = (
    *("-n", "3", "-e", "0.001", "-maxseq", _MAX_ROWS, "-realign_max", "100000"),
    *("-maxfilt", "100000", "-min_prefilter_hits", "1000"),
)
HHSEARCH_OPTIONS: Final = ("-maxseq", _MAX_ROWS)
_CSTRANSLATE_OPTIONS: Final = ("-x", "0.3", "-c", "4", "-I", "a3m", "-b", "-f")


def database_part(database: Path, part: str) -> Path:
    """Return the prefix of one of a database's parts: ``a3m``, ``hhm`` or ``cs219``."""
    return database.with_name(f"{database.name}_{part}")


def check_hh_database(database: Path) -> None:
    """Refuse an HH-suite database with a missing or empty part: programs would crash.

    Raises
    ------
    InputError
        Names the file.
    """
    check_files(database_part(database, "cs219"))
    is_compressed = index_file(database_part(database, "ca3m")).exists()
    check_files(database_part(database, "ca3m" if is_compressed else "a3m"))
    profiles = database_part(database, "hhm")
    # If profiles are not stored, programs make them from the alignments.
    if data_file(profiles).exists() or index_file(profiles).exists():
        check_files(profiles)


def hhblits(
    query: bytes,
    sequence: str,
    databases: Sequence[Path],
    limits: Limits,
    options: Sequence[str] = HHBLITS_OPTIONS,
) -> bytes:
    """Return the a3m alignment that hhblits finds; its first row is the query.

    Parameters
    ----------
    query
        The sequence, or an alignment of it, as a3m.
    databases
        Prefixes: ``<prefix>_a3m.ffdata`` and so on.
    options
        Command line words, in place of AlphaFold2's.

    Raises
    ------
    InputError
        The query is not an alignment of the sequence.
    ToolError
        See `scalefold.search.process.run`; or the result is not an alignment of the sequence; or
        the sequence is longer than ``MAX_COLUMNS``.
    """
    words = [*_search(databases, limits), *options, "-o", "out.hhr", "-oa3m", "out.a3m"]
    with _workspace(query, sequence) as folder:
        content = _run(folder, "hhblits", words, limits)
    with checked_output("hhblits"):
        parse_a3m(content, sequence, "its a3m")
    return content


def hhsearch(
    query: bytes,
    sequence: str,
    databases: Sequence[Path],
    limits: Limits,
    options: Sequence[str] = HHSEARCH_OPTIONS,
) -> bytes:
    """Return hhsearch's result file (hhr), to be read by `scalefold.raw.hhr.parse_hhr`.

    Parameters and errors are as in `hhblits`; entries of the databases are named
    ``<entry>_<chain>``.
    """
    words = [*_search(databases, limits), *options, "-o", "out.hhr"]
    with _workspace(query, sequence) as folder:
        content = _run(folder, "hhsearch", words, limits)
    with checked_output("hhsearch"):
        parse_hhr(content.decode("utf-8", "replace"), sequence, "its hhr")
    return content


def hhalign(
    query: bytes, sequence: str, template: bytes, template_name: str, limits: Limits
) -> list[HhrHit]:
    """Return the alignments of two alignments' profiles with each other, the best first.

    Raises as `hhblits`.

    Parameters
    ----------
    query, sequence, limits
        As in `hhblits`.
    template_name
        ``<entry>_<chain>``.
    """
    # hhalign would list an alignment under the query's name.
    profile, _ = hhmake(template, query_of(template, template_name), template_name, limits)
    with _workspace(query, sequence) as folder:
        (folder / "template.hhm").write_bytes(profile)
        content = _run(folder, "hhalign", ["-t", "template.hhm", "-o", "out.hhr"], limits)
    with checked_output("hhalign"):
        return parse_hhr(content.decode("utf-8", "replace"), sequence, "its hhr")


def hhmake(alignment: bytes, sequence: str, name: str, limits: Limits) -> tuple[bytes, ProfileHmm]:
    """Return the profile HMM of an a3m alignment, as a file and read; raises as `hhblits`."""
    words = ["-name", name, "-maxseq", _MAX_ROWS, "-o", "out.hhm"]
    with _workspace(alignment, sequence, name) as folder:
        content = _run(folder, "hhmake", words, limits)
    with checked_output("hhmake"):
        profile = parse_hhm(content.decode("utf-8", "replace"), "its hhm")
        if len(profile) != len(sequence):
            raise InputError(f"it has {len(profile)} columns, the query {len(sequence)}")
    return content, profile


def cstranslate(alignments: Path, out: Path, limits: Limits) -> None:
    """Write a database's column states, which the first filter of hhblits uses.

    Parameters
    ----------
    alignments, out
        Prefixes of ffindex databases: ``<database>_a3m`` and ``<database>_cs219``.

    Raises
    ------
    InputError
        The database of alignments is missing or empty.
    ToolError
        See `scalefold.search.process.run`.
    """
    check_files(alignments)
    states, context = (str(find_hhsuite_data(name)) for name in ("cs219.lib", "context_data.lib"))
    words = ["-A", states, "-D", context, "-i", str(alignments.absolute())]
    command = [str(find_binary("cstranslate")), *_CSTRANSLATE_OPTIONS, *words]
    run([*command, "-o", str(out.absolute())], limits)
    with checked_output("cstranslate"):
        check_files(out)


def _search(databases: Sequence[Path], limits: Limits) -> list[str]:
    """Return the words of a search in databases."""
    words = [word for database in databases for word in ("-d", str(database.absolute()))]
    return [*words, "-cpu", str(limits.threads)]


def _run(folder: Path, program: str, words: Sequence[str], limits: Limits) -> bytes:
    """Run a program in a workspace, and return the file that is the last of its words."""
    run([find_binary(program), "-v", "1", "-i", "query.a3m", *words], limits, folder)
    path = folder / words[-1]
    if not path.is_file():
        raise ToolError(f"{program} ended without an error, but wrote no {path.suffix[1:]}")
    return path.read_bytes()


@contextmanager
def _workspace(query: bytes, sequence: str, name: str = "query") -> Iterator[Path]:
    """Yield a temporary folder with the checked query, under a plain name."""
    encode_sequence(sequence)
    if len(sequence) > MAX_COLUMNS:
        raise ToolError(
            f"the query has {len(sequence):,} residues, HH-suite takes at most {MAX_COLUMNS:,}: "
            "cut it into domains, or leave it out"
        )
    parse_a3m(query, sequence, "the query")
    with tempfile.TemporaryDirectory(prefix="scalefold-search-") as folder:
        (Path(folder) / "query.a3m").write_bytes(rename_query(query, name))
        yield Path(folder)
