"""What files and folders say of chains, and what is passed over."""

from __future__ import annotations

import datetime
import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.shards.conftest import Workplace

from scalefold.chains import folders
from scalefold.chains.candidates import Candidate
from scalefold.chains.sources import read_sources, recognise
from scalefold.chains.tables import MLPERF_COLUMNS
from scalefold.errors import InputError
from scalefold.raw.json_items import json_items

SEQRES = """>101m_A mol:protein length:6  MYOGLOBIN
MVLSEG
>1lcd_B mol:na length:4  DNA
ACGT
>1ay7_A mol:protein length:8  RNASE
DVSG
TVCL
>1ay7_BB mol:protein length:2  BARSTAR
KK
"""


def known(*paths: Path) -> dict[str, Candidate]:
    return {chain.chain_key: chain for chain in read_sources(paths, jobs=1)}


def test_pdb_seqres_gives_proteins(tmp_path: Path) -> None:
    path = tmp_path / "pdb_seqres.txt.gz"
    path.write_bytes(gzip.compress(SEQRES.encode()))
    chains = known(path)
    assert {key: chain.sequence for key, chain in chains.items()} == {
        "101m_A": "MVLSEG",
        "1ay7_A": "DVSGTVCL",
        "1ay7_BB": "KK",
    }


@pytest.mark.parametrize(
    "text",
    [
        ">1abc_A\nMK\n",
        "1abc_A 1abc_B\n",
        json.dumps({"1abc_A": {"seq": "MK"}}),
        ",".join(MLPERF_COLUMNS) + "\n1abc_A,2020-01-01,2.0,1,MK\n",
    ],
)
def test_a_byte_order_mark_hides_no_chain(text: str, tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_text(text, "utf-8-sig")
    assert "1abc_A" in known(path)


@pytest.mark.parametrize("below", ["pdb", ""])
def test_chains_come_in_one_order(below: str, tmp_path: Path) -> None:
    """Clusters that MMseqs2 computes are named after a sequence's first chain, and so chosen."""
    keys = [f"{number}abc_A" for number in range(10, 40)]
    for key in reversed(keys):
        (tmp_path / below / key).mkdir(parents=True)
    assert list(known(tmp_path)) == keys


def test_hostile_names_and_sequences_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "all.fasta"
    path.write_text(
        ">../../etc/passwd_A\nMK\n>\nMK\n>1abc_A/../x\nMK\n>1ABC_A\nMK\n>1abc_B\nM*K\n>1abc_C\nMK*\n"
        ">1abc_C\nMKMK\n>1abc_D\n" + "A" * 35_000 + "\n>1abc_E\n" + ("A" * 999 + "\n") * 100
    )
    candidates = read_sources([path], jobs=1)
    sequences = {chain.chain_key: chain.sequence for chain in candidates}
    assert sequences == {
        "1abc_B": None,
        "1abc_C": "MK",
        "1abc_D": "A" * 35_000,
        "1abc_E": None,
    }
    assert len(list(candidates.notes)) == 3


def test_open_protein_set_expands_to_identical_chains(tmp_path: Path) -> None:
    for name in ("1abc_A", "2xyz_B", "no-chain"):
        (tmp_path / "pdb" / name / "a3m").mkdir(parents=True)
    (tmp_path / "pdb" / "3fil_A").touch()  # a file is no folder of alignments
    (tmp_path / "duplicate_pdb_chains.txt").write_text(
        "4dup_AA 1abc_A 1abc_A\n5non_A 5non_B\n6dup_C 4dup_AA 2xyz_B\n\n"
    )
    assert set(known(tmp_path)) == {"1abc_A", "2xyz_B", "4dup_AA", "6dup_C"}
    assert "5non_B" in known(tmp_path / "duplicate_pdb_chains.txt")


def test_sources_with_alignments_say_which_chains(tmp_path: Path) -> None:
    """In any order; the others say more of these chains only, and the first one counts."""
    seqres, duplicates = tmp_path / "seqres.txt", tmp_path / "duplicates.txt"
    cache = tmp_path / "cache.json"
    seqres.write_text(SEQRES)
    duplicates.write_text("101m_A 9zzz_A\n")
    cache.write_text(
        json.dumps({"101m_A": {"seq": "OTHER", "release_date": "1998-04-08", "resolution": 2.07}})
    )
    chains = known(seqres, cache, duplicates)
    assert set(chains) == {"101m_A", "9zzz_A"}
    assert chains["101m_A"].sequence == "MVLSEG"
    assert chains["101m_A"].release_date == datetime.date(1998, 4, 8)
    assert chains["101m_A"].resolution == 2.07
    assert chains["9zzz_A"].sequence is None


def test_openfolds_caches(tmp_path: Path) -> None:
    cache = tmp_path / "mmcif_cache.json"
    cache.write_text(
        json.dumps(
            {
                "1abc": {
                    "release_date": "2001-02-03",
                    "chain_ids": ["A", "b"],
                    "seqs": ["MK", "AA"],
                    "no_chains": 2,
                    "resolution": 0.0,
                },
                "2bad": {"chain_ids": ["A"], "seqs": ["MK"], "release_date": "?"},
                "3non": {},
                "4odd": {"chain_ids": 1, "seqs": ["MK"]},
                "5odd": {"chain_ids": ["A"], "seqs": 7},
            }
        )
    )
    chains = known(cache)
    assert set(chains) == {"1abc_A", "1abc_b", "2bad_A"}
    assert chains["1abc_b"].sequence == "AA"
    assert chains["1abc_b"].resolution is None, "zero is how the cache says that there is none"
    assert chains["2bad_A"].release_date is None
    index = tmp_path / "super.index"
    index.write_text(json.dumps({"1abc_b": {"db": "0.db", "files": [["uniref90_hits.a3m", 0, 9]]}}))
    assert set(known(cache, index)) == {"1abc_b"}


def test_json_is_read_item_by_item(tmp_path: Path) -> None:
    items = {f'1a"{i}': {"seq": 'M{}"\\' * (i % 700), "n": [{"x": i}]} for i in range(3000)}
    path = tmp_path / "large.json"
    path.write_text(json.dumps(items, indent=1))
    assert path.stat().st_size > 3 << 20
    assert dict(json_items(path)) == items
    path.write_text(path.read_text()[:-9])
    with pytest.raises(InputError, match="cut"):
        dict(json_items(path))


@pytest.mark.parametrize(
    "text",
    [
        '{"1abc_A": 12}',
        '{"a":[' * 9,
        '{"a": ' + '{"a":' * 99_999,
        '{"a\tb": {}}',
        '{"a": {"b": ' + "9" * 5000 + "}}",
    ],
)
def test_other_json_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"other\.json"):
        read_sources([path], jobs=1)


def test_mlperfs_table(tmp_path: Path) -> None:
    path = tmp_path / "chains.csv"
    path.write_text(
        "pdb_chain_id,pdb_id,author_chain_id,mmcif_chain_ids,release_date,resolution,"
        "pdb_cluster_id,sequence_length,sequence\n"
        "7ny6_A,7ny6,A,A;C,2021-10-20,1.5,17,4,MKVL\n1abc_NA,1abc,NA,B,2000-01-01,,-1,2,MK\n"
    )
    chains = known(path)
    assert chains["7ny6_A"].cluster is not None
    assert chains["7ny6_A"].label == "A;C"
    assert chains["1abc_NA"].cluster is None
    assert chains["1abc_NA"].resolution is None


def test_a_damaged_first_line_of_mlperfs_table_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "chains.csv"
    columns = ",".join(MLPERF_COLUMNS)
    path.write_text(f"{columns},note\rs\n")
    with pytest.raises(InputError, match=r"chains\.csv: line"):
        read_sources([path], jobs=1)


def test_structures_that_cannot_be_read_are_passed_over(demo_wwpdb: Path, tmp_path: Path) -> None:
    folder = tmp_path / "structures"
    folder.mkdir()
    for name in ("1ay7", "4i6p"):
        (path,) = demo_wwpdb.rglob(f"{name}.cif.gz")
        (folder / path.name).symlink_to(path)
    (folder / "empty.pdb").touch()
    (folder / "cut.cif.gz").write_bytes(b"\x1f\x8b\x08")
    (folder / "loop").symlink_to(folder)
    (folder / "absent.cif").symlink_to(folder / "nothing")
    os.mkfifo(folder / "pipe.pdb")
    candidates = read_sources([folder], jobs=1)
    chains = {chain.chain_key: chain for chain in candidates}
    assert set(chains) == {"1ay7_A", "1ay7_B", "4i6p_A", "4i6p_B"}
    assert chains["1ay7_B"].entity == "2"
    assert chains["1ay7_B"].method == "x-ray diffraction"
    (note,) = candidates.notes
    assert "2" in note


def test_structures_with_capitals_in_their_names_are_listed(
    demo_wwpdb: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = demo_wwpdb.rglob("4i6p.cif.gz")
    (tmp_path / "4I6P.cif.gz").symlink_to(path)
    candidates = read_sources([tmp_path], jobs=1)
    assert {chain.chain_key for chain in candidates} == {"4i6p_A", "4i6p_B"}
    assert "as 4i6p.cif.gz" in caplog.text
    assert not list(candidates.notes), "they are not passed over"


def test_several_processes_read_the_same(demo_wwpdb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {chain.chain_key: chain for chain in read_sources([demo_wwpdb], jobs=1)}
    monkeypatch.setattr(folders, "_CHUNK", 4)
    assert {chain.chain_key: chain for chain in read_sources([demo_wwpdb], jobs=2)} == one


def test_packed_shards_say_what_structures_say(demo_wwpdb: Path, tmp_path: Path) -> None:
    """Of the chains that have an alignment, whatever their split."""
    work = Workplace(tmp_path)
    keys = ["1ay7_B", "4i6p_A", "4zey_A"]
    work.list_chains(*((key, "train", f"of {key}") for key in keys))
    for key in keys:
        work.structure(key[:4])
    for key in ("1ay7_B", "4zey_A"):
        work.alignment(key)
    work.pack()
    chains, structures = known(work.out), known(demo_wwpdb)
    assert set(chains) == {"1ay7_B", "4zey_A"}
    for key, chain in chains.items():
        chain.entity = structures[key].entity  # is not packed
        chain.num_observed = structures[key].num_observed  # would need all atoms
        assert chain == replace(structures[key], cluster=f"of {key}")


def test_obsolete_entries_are_left_out(tmp_path: Path) -> None:
    duplicates, obsolete = tmp_path / "duplicates.txt", tmp_path / "obsolete.dat"
    duplicates.write_text("116l_A 216l_A\n1hhb_B\n")
    obsolete.write_text(
        " LIST OF OBSOLETE COORDINATE ENTRIES AND SUCCESSORS\n"
        "OBSLTE    31-JUL-94 116L     216L\nOBSLTE    18-JUL-84 1HHB     2HHB 3HHB 4HHB\nOBSLTE\n"
    )
    assert set(known(obsolete, duplicates)) == {"216l_A"}
    with pytest.raises(InputError, match="no chain"):
        known(obsolete)


def test_a_list_of_chains_is_no_source(tmp_path: Path) -> None:
    """Its first word could be the name of a chain."""
    (tmp_path / "chains.tsv").write_text("chain_key\tsplit\tcluster_id\n5pti_A\ttrain\t\n")
    with pytest.raises(InputError, match=r"list of chains already: name it in data\.chains"):
        known(tmp_path / "chains.tsv")


def test_what_is_no_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        recognise(tmp_path / "absent")
    with pytest.raises(InputError, match="holds nothing"):
        recognise(tmp_path)
    path = tmp_path / "clusters-by-entity-40.txt"
    path.write_text("4HHB_1 2DN1_1\n")
    with pytest.raises(InputError, match="--clusters"):
        recognise(path)
    path.write_text("")
    with pytest.raises(InputError, match="empty"):
        recognise(path)
    path.write_text(">x\nMK\n")
    with pytest.raises(InputError, match="no chain"):
        read_sources([path], jobs=1)
