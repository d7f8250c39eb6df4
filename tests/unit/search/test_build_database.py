"""HH-suite databases built from alignments and from packed chains."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from Bio import SearchIO
from tests.unit.search.conftest import ALIGNMENTS, LIMITS, alignment, needs

from scalefold.errors import InputError
from scalefold.raw.hhr import parse_hhr
from scalefold.search import build_database as building
from scalefold.search.a3m import query_of
from scalefold.search.build_database import (
    alignments_of_folder,
    alignments_of_shards,
    build_database,
    check_parts_agree,
)
from scalefold.search.ffindex import FFIndex, write_ffindex
from scalefold.search.hhsuite import database_part, hhsearch
from scalefold.shards.reader import ShardReader

SHARDS = Path(__file__).parents[2] / "data/a3f069b/run/shards"
pytestmark = needs("hhmake")


def _folder(tmp_path: Path, **contents: bytes) -> Path:
    folder = tmp_path / "alignments-by-hand"
    folder.mkdir()
    for name, content in contents.items():
        (folder / f"{name}.a3m").write_bytes(content)
    return folder


def test_packed_chains_find_themselves(tmp_path: Path) -> None:
    chosen = alignments_of_shards(SHARDS)[:2]
    assert build_database(tmp_path / "packed", chosen, LIMITS) == []
    reader = ShardReader(SHARDS)
    for item in chosen:
        sequence = query_of(item.read(), item.name)
        assert sequence == reader.chain(item.name).sequence
        text = hhsearch(item.read(), sequence, [tmp_path / "packed"], LIMITS).decode()
        assert parse_hhr(text, sequence, "found")[0].chain_key == item.name


def test_what_cannot_be_used_is_left_out(tmp_path: Path) -> None:
    good = alignment("1mol_A")
    folder = _folder(
        tmp_path,
        good_A=good,
        empty_A=b"",
        ragged_A=b">a\nMKV\n>b\nMK\n",
        symbol_A=b">a\nMK5\n",
        long_A=b">a\n" + b"MK" * 10_000 + b"\n",
        **{f"{'n' * 40}_A": good},
    )
    rejected = build_database(tmp_path / "db", alignments_of_folder(folder), LIMITS)
    bad = {"empty_A", "ragged_A", "symbol_A", "long_A", f"{'n' * 40}_A"}
    assert {r.chain_key for r in rejected} == bad
    assert "at most 19,999" in next(r.reason for r in rejected if r.chain_key == "long_A")
    assert list(FFIndex(tmp_path / "db_cs219")) == ["good_A"]


def test_an_interrupted_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path, a_A=alignment("1mol_A"), b_A=alignment("3u8v_A"))
    made: list[str] = []
    hhmake = building.hhmake

    def counted(content: bytes, sequence: str, name: str, limits: object) -> object:
        made.append(name)
        return hhmake(content, sequence, name, LIMITS)

    def interrupt(*unused: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "hhmake", counted)
    with monkeypatch.context() as now:
        now.setattr(building, "cstranslate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_database(tmp_path / "db", alignments_of_folder(folder), LIMITS)
    assert build_database(tmp_path / "db", alignments_of_folder(folder), LIMITS) == []
    assert sorted(made) == ["a_A", "b_A"]
    assert not (tmp_path / "db.parts").exists()


def test_refuses_folders_without_alignments(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        alignments_of_folder(tmp_path / "absent")
    with pytest.raises(InputError, match="has no alignment"):
        alignments_of_folder(tmp_path)


def test_of_two_forms_of_an_alignment_a3m_is_taken(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.a3m").write_text(">q\nACD\n")
        (tmp_path / f"{number}.sto").write_text("# STOCKHOLM 1.0\nq CCC\n//\n")
    contents = {item.read() for item in alignments_of_folder(tmp_path)}
    assert contents == {b">q\nACD\n"}


def test_names_an_entry_that_a_part_lacks(database: Path, tmp_path: Path) -> None:
    for path in database.parent.glob("demo_*"):
        shutil.copy(path, tmp_path / path.name)
    states = FFIndex(database_part(tmp_path / "demo", "cs219"))
    kept = [(name, states[name]) for name in states if name != "5pti_A"]
    write_ffindex(database_part(tmp_path / "demo", "cs219"), kept)
    with pytest.raises(InputError, match=r"5pti_A.*cs219"):
        check_parts_agree(tmp_path / "demo")


@needs("hhsearch")
def test_hits_agree_with_biopython(database: Path, tmp_path: Path) -> None:
    for folder in sorted(ALIGNMENTS.iterdir())[:6]:
        content = alignment(folder.name)
        sequence = query_of(content, folder.name)
        text = hhsearch(content, sequence, [database], LIMITS)
        (tmp_path / "found.hhr").write_bytes(text)
        ours = parse_hhr(text.decode(), sequence, folder.name)
        theirs = SearchIO.read(tmp_path / "found.hhr", "hhsuite3-text")
        pairs = {
            (hsp.hit_id, hsp.evalue, hsp.query_start, hsp.query_end, hsp.hit_start, hsp.hit_end)
            for hsp in theirs.hsps
        }
        assert pairs == {
            (
                hit.name,
                hit.e_value,
                int(hit.q_idx[0]),
                int(hit.q_idx[-1]) + 1,
                int(hit.t_idx[0]),
                int(hit.t_idx[-1]) + 1,
            )
            for hit in ours
        }
