"""HH-suite's programs on a small real database."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.unit.search.conftest import ALIGNMENTS, LIMITS, alignment, needs

from scalefold.chem.residues import RESTYPES
from scalefold.errors import InputError
from scalefold.raw.a3m import parse_a3m
from scalefold.raw.hhr import parse_hhr
from scalefold.search.a3m import query_of
from scalefold.search.ffindex import FFIndex
from scalefold.search.hhm import parse_hhm
from scalefold.search.hhsuite import check_hh_database, hhalign, hhblits, hhmake, hhsearch
from scalefold.search.process import Limits, ToolError

pytestmark = needs("hhblits", "hhsearch", "hhmake", "hhalign")


def _query(key: str) -> tuple[bytes, str]:
    sequence = query_of(alignment(key), key)
    return f">query\n{sequence}\n".encode(), sequence


def test_hhblits_finds_the_family(database: Path) -> None:
    query, sequence = _query("5pti_A")
    found = parse_a3m(hhblits(query, sequence, [database], LIMITS), sequence, "found")
    assert len(found) > 10


def test_hhsearch_ranks_the_query_itself_first(database: Path) -> None:
    sequence = query_of(alignment("3o5r_A"), "3o5r_A")
    text = hhsearch(alignment("3o5r_A"), sequence, [database], LIMITS).decode()
    best = parse_hhr(text, sequence, "found")[0]
    assert best.chain_key == "3o5r_A"
    assert best.aligned_columns == len(sequence)
    np.testing.assert_array_equal(best.q_idx, best.t_idx)


def test_hhalign_agrees_with_hhsearch_on_a_pair(database: Path) -> None:
    sequence = query_of(alignment("5pti_A"), "5pti_A")
    (best, *_) = hhalign(alignment("5pti_A"), sequence, alignment("5pti_A"), "5pti_A", LIMITS)
    text = hhsearch(alignment("5pti_A"), sequence, [database], LIMITS).decode()
    searched = parse_hhr(text, sequence, "found")[0]
    assert best.chain_key == searched.chain_key == "5pti_A"
    np.testing.assert_array_equal(best.t_idx, searched.t_idx)


def test_hhmake_weighs_the_rows(database: Path) -> None:
    content, profile = hhmake(alignment("5pti_A"), _query("5pti_A")[1], "5pti_A", LIMITS)
    msa = parse_a3m(alignment("5pti_A"), profile.sequence, "5pti_A").msa
    conserved = np.flatnonzero((msa == msa[0]).mean(axis=0) > 0.9)
    assert len(conserved) > 0
    commonest = [RESTYPES[i] for i in profile.emissions[conserved].argmax(axis=1)]
    assert commonest == [profile.sequence[column] for column in conserved]
    np.testing.assert_allclose(profile.emissions.sum(1), 1.0, atol=0.01)
    np.testing.assert_allclose(profile.transitions[1:, :3].sum(1), 1.0, atol=0.01)
    assert 1.0 < profile.neff < len(msa)
    with pytest.raises(InputError, match="cut off"):
        parse_hhm(content.decode()[:-10], "cut")


def test_a_built_database_has_the_same_entries_in_all_parts(database: Path) -> None:
    a3m, hhm, states = (FFIndex(Path(f"{database}_{part}")) for part in ("a3m", "hhm", "cs219"))
    keys = sorted(path.name for path in ALIGNMENTS.iterdir())
    assert list(a3m) == list(hhm) == list(states) == keys
    for key in keys:
        assert states.num_bytes(key) == len(query_of(a3m[key], key))


@pytest.mark.parametrize("text", [b">query\nMK5V?V*LL\n", b">query\nMKV-LL\n", b""])
def test_refuses_a_query_that_hh_suite_would_change_silently(database: Path, text: bytes) -> None:
    with pytest.raises(InputError):
        hhblits(text, "MKVVLL", [database], LIMITS)


def test_rare_letters_come_back_as_they_were(database: Path) -> None:
    sequence = "MUOJBZXKAGKAVEWWQKAEEWWKKLMNPQ"
    query = f">query\n{sequence}\n".encode()
    content = hhblits(query, sequence, [database], LIMITS)
    assert query_of(content, "found") == sequence


def test_names_a_missing_and_an_empty_database(database: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no_cs219\.ffdata"):
        check_hh_database(tmp_path / "no")
    for file in database.parent.glob("demo_*"):
        shutil.copy(file, tmp_path / file.name)
    (tmp_path / "demo_cs219.ffdata").write_bytes(b"")
    with pytest.raises(InputError, match=r"demo_cs219\.ffdata"):
        check_hh_database(tmp_path / "demo")
    check_hh_database(database)


def test_a_crash_is_an_error_of_the_program(tmp_path: Path) -> None:
    query, sequence = _query("5pti_A")
    with pytest.raises(ToolError, match="hhblits"):
        hhblits(query, sequence, [tmp_path / "absent"], LIMITS)


def test_memory_is_limited(database: Path) -> None:
    query, sequence = _query("3o5r_A")
    with pytest.raises(ToolError, match=r"0\.01 GB"):
        hhblits(query, sequence, [database], Limits(minutes=1, memory_gigabytes=0.01))
