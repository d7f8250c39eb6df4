"""HMMER's programs on a small real database."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.search.conftest import LIMITS, alignment, needs

from scalefold.errors import InputError
from scalefold.raw.a3m import parse_a3m
from scalefold.search.a3m import query_of
from scalefold.search.hmmer import check_fasta_database, hmmsearch, jackhmmer

pytestmark = needs("jackhmmer", "hmmsearch", "hmmbuild")
SEQUENCE = query_of(alignment("5pti_A"), "5pti_A")


def test_jackhmmer_finds_the_family_and_stops_at_the_limit(sequences: Path) -> None:
    whole = parse_a3m(jackhmmer(SEQUENCE, sequences, LIMITS), SEQUENCE, "whole")
    cut = parse_a3m(jackhmmer(SEQUENCE, sequences, LIMITS, max_rows=5), SEQUENCE, "cut")
    assert len(whole) > 20
    assert (cut.msa == whole.msa[:5]).all()


def test_hmmsearch_finds_what_the_profile_describes(sequences: Path) -> None:
    found = hmmsearch(alignment("5pti_A"), SEQUENCE, sequences, LIMITS, max_rows=30)
    assert len(parse_a3m(found, SEQUENCE, "found")) == 30


def test_the_query_is_left_where_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.fasta").write_text(">other\n" + "W" * 30 + "\n")
    (tmp_path / "options").touch()
    for found in (
        jackhmmer(SEQUENCE, tmp_path / "other.fasta", LIMITS),
        hmmsearch(alignment("5pti_A"), SEQUENCE, tmp_path / "other.fasta", LIMITS, options=()),
    ):
        assert len(parse_a3m(found, SEQUENCE, "found")) == 1


def test_refuses_what_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "db.fasta"
    for content, fault in ((None, "no such file"), (b"", "is empty"), (b"\x1f\x8b", "not a FASTA")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=fault):
            check_fasta_database(path)


def test_names_the_package_of_a_missing_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="apt-get install hmmer"):
        jackhmmer(SEQUENCE, tmp_path / "any.fasta", LIMITS)
