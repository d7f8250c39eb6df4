from __future__ import annotations

import errno
import gzip
import re
from pathlib import Path

import pytest

from scalefold.errors import InputError
from scalefold.raw.chain_key import entry_of, extended_form, short_form
from scalefold.raw.chains import ChainRow, leaking_clusters, read_chains
from scalefold.raw.raw_folder import alignment_folder, folder_hash, mmcif_path
from scalefold.raw.rejected import Rejected, read_rejected, write_rejected

HEADER = "chain_key\tsplit\tcluster_id\n"


def test_reads_rows(tmp_path: Path) -> None:
    path = tmp_path / "chains.tsv"
    path.write_text(HEADER + "1abc_A\ttrain\tc7\n\npdb_00002abc_AA\ttemplate\t\r\n")
    first, second = read_chains(path)
    assert first == ChainRow("1abc_A", "train", "c7")
    assert first.entry_id == "1abc"
    assert second == ChainRow("pdb_00002abc_AA", "template", None)
    assert second.entry_id == "pdb_00002abc"


def test_both_names_of_an_entry_are_one(tmp_path: Path) -> None:
    path = tmp_path / "chains.tsv"
    lines = ["pdb_00001abc_B\ttrain\tc", "1abc_A\ttrain\tc", "pdb_00002abc_A\ttrain\t"]
    path.write_text(HEADER + "\n".join(lines))
    keys = [row.chain_key for row in read_chains(path)]
    assert keys == ["1abc_B", "1abc_A", "pdb_00002abc_A"]
    path.write_text(HEADER + "\n".join([*lines, "pdb_00001abc_A\ttrain\tc"]))
    with pytest.raises(InputError, match=r"1abc_A .*line 3 .*pdb_00001abc_A in line 5"):
        read_chains(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line is empty, expected .* chain_key split cluster_id"),
        ("# My configuration\n", "expected the tab-separated header chain_key split cluster_id.$"),
        ("chain\tsplit\n", "chain_key split cluster_id"),
        ("chain_key split cluster_id\n", "spaces"),
        ("chain_key,split,cluster_id\n", "commas"),
        (
            HEADER + "1abc_A  train  c7\n",
            "line 2: 1 .*spaces",
        ),
        (HEADER + "1abc_A\ttrain\n", "line 2"),
        (HEADER + "1abc_A\ttrain\tc7 \n", r"line 2: .*'c7 '"),
        (HEADER + "1abc_A\ttrain\t c7\n", "line 2: .*space"),
        (HEADER + "1abc_A \ttrain\tc7\n", "line 2: .*space"),
        (HEADER + " 1abc_A\ttrain\tc7\n", "line 2: .*space"),
        (HEADER, "no chain"),
        (HEADER + "1abc_A\ttrain\n", "line 2: 2 .*3"),
        (HEADER + "1ABC_A\ttrain\t\n", "line 2: chain key '1ABC_A'"),
        (HEADER + "1abc\ttrain\t\n", "<entry>_<author chain>"),
        (HEADER + "1abc_A\ttest\t\n", "'test' of 1abc_A"),
        (
            HEADER + "1abc_A\ttrain\t\n2abc_A\ttrain\t\n1abc_A\tvalidation\t\n",
            "1abc_A .*2 and 4",
        ),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "chains.tsv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_chains(path)
    assert str(path) in str(caught.value)


def test_a_folder_or_a_packed_file_is_no_table(tmp_path: Path) -> None:
    packed = tmp_path / "chains.tsv.gz"
    packed.write_bytes(gzip.compress(HEADER.encode()))
    for path, message in ((packed, "is no text, .* Unpack it"), (tmp_path, "Is a directory")):
        with pytest.raises(InputError, match=f"{path}: .*{message}"):
            read_chains(path)


@pytest.mark.parametrize(
    "key",
    [
        "../../../esc/5pti_A",
        "/esc/5pti_A",
        "5pti_../../esc",
        "1..x_A",  # its hash is ".."
        "5p ti_A",
        "5pti_{name}",
        "5pti_A\\B",
        "5pti_Ä",
        "abc_A",
        "5pti_" + "A" * 300,
    ],
)
def test_a_key_that_could_lead_out_of_the_folder_is_none(tmp_path: Path, key: str) -> None:
    path = tmp_path / "chains.tsv"
    path.write_text(f"{HEADER}1abc_A\ttrain\t\n{key}\ttrain\t\n", "utf-8")
    with pytest.raises(InputError, match=re.escape(f"line 3: chain key {key!r}")):
        read_chains(path)


@pytest.mark.parametrize("key", ["1abc_A", "pdb_00001abc_a-2", "af-p69905-f1_A", "4v4r_AA"])
def test_keys_of_archives_are_taken(tmp_path: Path, key: str) -> None:
    path = tmp_path / "chains.tsv"
    path.write_text(f"{HEADER}{key}\ttrain\t\n")
    assert [row.chain_key for row in read_chains(path)] == [key]


def test_what_is_no_text_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "chains.tsv"
    path.write_bytes(gzip.compress(HEADER.encode()))
    for table in (path, tmp_path):
        with pytest.raises(InputError, match=f"{table}"):
            read_chains(table)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    """Excel writes one into text of UTF-8."""
    path = tmp_path / "chains.tsv"
    path.write_text("chain_key\tsplit\tcluster_id\r\n1abc_A\ttrain\t\r\n", "utf-8-sig", newline="")
    assert read_chains(path) == [ChainRow("1abc_A", "train", None)]


def test_missing_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.chains"):
        read_chains(tmp_path / "none.tsv")


def test_rejected_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rejected.tsv"
    assert read_rejected(path) == []
    rows = [Rejected("2abc_A", "fetch", "a\tb\nc"), Rejected("1abc_A", "pack", "x")]
    write_rejected(path, rows)
    assert read_rejected(path) == [
        Rejected("1abc_A", "pack", "x"),
        Rejected("2abc_A", "fetch", "a b c"),
    ]
    assert [p.name for p in path.parent.iterdir()] == ["rejected.tsv"]


def test_a_table_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rejected.tsv"
    write_rejected(path, [Rejected("1abc_A", "fetch", "x")])
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"rejected\.tsv: .*No space left"):
        write_rejected(path, [])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="below"):
        write_rejected(path / "below" / "t.tsv", [])


@pytest.mark.parametrize(
    ("key", "entry"), [("1abc_A", "1abc"), ("pdb_00001abc_AA", "pdb_00001abc"), ("4hhb_a", "4hhb")]
)
def test_entry_of_a_key(key: str, entry: str) -> None:
    assert entry_of(key) == entry


def test_layout() -> None:
    assert folder_hash("1abc") == "ab"
    assert folder_hash("pdb_1abc5678") == "67"  # wwPDB's own example
    assert mmcif_path(Path("raw"), "1abc") == Path("raw/mmcif/ab/1abc.cif.gz")
    assert alignment_folder(Path("raw"), "1abc_A") == Path("raw/alignments/1abc_A")


@pytest.mark.parametrize(
    ("long", "short"),
    [
        ("pdb_00001abc", "1abc"),
        ("pdb_00001abc_AA", "1abc_AA"),
        ("pdb_10001abc", "pdb_10001abc"),
        ("pdb_0000mine_A", "pdb_0000mine_A"),
        ("mine", "mine"),
    ],
)
def test_forms_of_an_entry(long: str, short: str) -> None:
    assert short_form(long) == short_form(short) == short
    if "_A" not in long:
        assert extended_form(short) == extended_form(long) == long


def test_a_cluster_on_both_sides_leaks() -> None:
    rows = [
        ChainRow("1abc_A", "train", "1"),
        ChainRow("2abc_A", "validation", "1"),
        ChainRow("3abc_A", "validation", "2"),
        ChainRow("4abc_A", "template", "2"),
        ChainRow("5abc_A", "train", None),
        ChainRow("6abc_A", "validation", None),
    ]
    assert leaking_clusters(rows) == ["1"]
