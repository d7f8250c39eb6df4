"""Protein sequences of FASTA files: what is taken, what is set aside."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from scalefold.errors import InputError
from scalefold.raw.fasta import FastaRecord, read_fasta


def _read(tmp_path: Path, content: str | bytes):
    path = tmp_path / "my.fasta"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_fasta(path)


def test_reads_names_and_sequences(tmp_path: Path) -> None:
    content = "\ufeff>a first one\r\nMKV\r\nllg h\r\n\r\n>sp|P00974|BPT1_BOVIN\r\nACDX\r\n"
    records, rejected = _read(tmp_path, content)
    assert records == [FastaRecord("a", "MKVLLGH"), FastaRecord("sp|P00974|BPT1_BOVIN", "ACDX")]
    assert rejected == []


@pytest.mark.parametrize(
    "record",
    [
        ">stop\nMKV*\n",
        ">inner\nMK*V\n",
        ">gap\nMK-V\n",
        ">digit\nMK5V\n",
        ">umlaut\nMKÄV\n",
        ">eszett\nMKßV\n",
        ">empty\n",
        ">unknown\nXXXX\n",
        ">long\n" + "M" * 20_001 + "\n",
        ">dna\n" + "ACGTN" * 5 + "\n",
        ">rna\n" + "ACGU" * 5 + "\n",
        ">good\nMKVA\n",  # a second one of this name
        ">../up\nMKV\n",
        ">/etc/passwd\nMKV\n",
        ">.hidden\nMKV\n",
        ">-i\nMKV\n",
        ">..\nMKV\n",
        ">nul\0\nMKV\n",
        ">\u202eevil\nMKV\n",
        ">" + "n" * 121 + "\nMKV\n",
        ">\nMKV\n",
        "> \t \nMKV\n",
    ],
)
def test_sets_one_record_aside_and_goes_on(tmp_path: Path, record: str) -> None:
    content = f">good\nMKV\n{record}>last\nMKL\n"
    records, rejected = _read(tmp_path, content)
    assert records == [FastaRecord("good", "MKV"), FastaRecord("last", "MKL")]
    (only,) = rejected
    is_letter = only.name in ("stop", "inner", "gap", "digit", "umlaut", "eszett")
    assert only.line == (4 if is_letter else 3)
    assert only.name.isprintable()
    assert "\n" not in only.reason


@pytest.mark.parametrize("letter", ["*", "-", "5", "Ä"])
def test_the_line_of_a_wrong_letter_is_named(tmp_path: Path, letter: str) -> None:
    _, (only,) = _read(tmp_path, f">good\nMKV\n>bad\nmkv\n\nMK{letter}V\nMKV\n")
    assert (only.name, only.line) == ("bad", 6)
    assert "residue 6" in only.reason


def test_text_before_the_first_title_is_one_record_set_aside(tmp_path: Path) -> None:
    records, rejected = _read(tmp_path, "MKV\nMKL\n>a\nMKV\n")
    assert [record.name for record in records] == ["a"]
    assert [record.line for record in rejected] == [1]


def test_a_peptide_of_letters_of_bases_is_a_protein(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records, _ = _read(tmp_path, ">silk\n" + "GA" * 30 + "\n>short\nACGT\n")
    assert len(records) == 2
    (warning,) = caplog.messages
    assert "silk" in warning


def test_bytes_that_are_no_text_are_set_aside(tmp_path: Path) -> None:
    records, rejected = _read(tmp_path, b">a\nMK\xff\xfeV\n>b\nMKV\n")
    assert [record.name for record in records] == ["b"]
    assert [record.name for record in rejected] == ["a"]


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_refuses_a_file_without_records(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match="has no record"):
        _read(tmp_path, content)


def test_refuses_a_gzipped_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is gzipped"):
        _read(tmp_path, gzip.compress(b">a\nMKV\n"))


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.fasta"):
        with pytest.raises(InputError, match="cannot be read"):
            read_fasta(path)
