"""pyhmmer beside the program jackhmmer, on a small real database."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.search.conftest import LIMITS, alignment, needs

from scalefold.errors import InputError
from scalefold.raw.a3m import parse_a3m
from scalefold.search import hmmer_in_process
from scalefold.search.a3m import query_of
from scalefold.search.hmmer import JACKHMMER_OPTIONS, jackhmmer
from scalefold.search.hmmer_in_process import check_in_process, jackhmmer_in_process
from scalefold.search.process import Limits, ToolError

SEQUENCE = query_of(alignment("5pti_A"), "5pti_A")
PART = 20_000
"""A twelfth of the database: hits of many parts meet."""


@needs("jackhmmer")
@pytest.mark.parametrize(
    "options", [JACKHMMER_OPTIONS, ("-N", "1"), ("-E", "50", "--incE", "9", "-N", "1")]
)
def test_finds_what_the_program_finds(sequences: Path, options: tuple[str, ...]) -> None:
    for key in ("102m_A", "2ofg_X", "3jqh_A", "5pti_A"):
        query = query_of(alignment(key), key)
        for max_rows in (None, 20):
            expected = jackhmmer(query, sequences, LIMITS, max_rows, options)
            arguments = (query, sequences, LIMITS, max_rows, options)
            assert jackhmmer_in_process(*arguments) == expected
            assert jackhmmer_in_process(*arguments, part_residues=PART) == expected


@needs("jackhmmer")
def test_reads_hostile_databases_as_the_program_does(tmp_path: Path) -> None:
    path = tmp_path / "db.fasta"
    rows = alignment("5pti_A").decode().split(">")[2:8]
    letters = ["".join(row.split("\n")[1:]).replace("-", "").upper() for row in rows]
    records = [f">same name {number}\n{row}\n" for number, row in enumerate(letters)]
    records += [f">stop\n{letters[0]}*\n", f">{'n' * 300}\n{letters[1]}\n", ">empty\n>two\n"]
    records += [f">long\n{'G' * 35_000}{letters[0]}\n", f">unknown\n{letters[2]}XBZUOJ\n"]
    path.write_text("".join(records))
    assert jackhmmer_in_process(SEQUENCE, path, LIMITS) == jackhmmer(SEQUENCE, path, LIMITS)


def test_the_query_is_left_where_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.fasta").write_text(">other\n" + "W" * 30 + "\n")
    found = jackhmmer_in_process(SEQUENCE, tmp_path / "other.fasta", LIMITS)
    assert len(parse_a3m(found, SEQUENCE, "found")) == 1


def test_a_search_ends_at_its_time_limit(sequences: Path) -> None:
    with pytest.raises(ToolError, match="0 minutes"):
        jackhmmer_in_process(SEQUENCE, sequences, Limits(minutes=0), part_residues=PART)


@pytest.mark.parametrize("letters", ["AC7DE", "G" * 100_001])
def test_a_sequence_that_hmmer_refuses_fails_one_search(tmp_path: Path, letters: str) -> None:
    (tmp_path / "db.fasta").write_text(f">good\n{SEQUENCE}\n>bad\n{letters}\n")
    with pytest.raises(ToolError, match="pyhmmer failed"):
        jackhmmer_in_process(SEQUENCE, tmp_path / "db.fasta", LIMITS)


@pytest.mark.parametrize("options", [("-N", "3"), ("--max",), ("-E",), ("-E", "much")])
def test_refuses_options_that_it_would_not_follow(
    sequences: Path, options: tuple[str, ...]
) -> None:
    with pytest.raises(InputError, match="tool jackhmmer"):
        check_in_process(sequences, options)


def test_refuses_a_large_database_and_a_missing_package(
    sequences: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_in_process(sequences)
    monkeypatch.setattr(hmmer_in_process, "MAX_DATABASE_BYTES", 1000)
    with pytest.raises(InputError, match="tool jackhmmer"):
        check_in_process(sequences)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install pyhmmer"):
        check_in_process(sequences)
