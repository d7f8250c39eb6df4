"""Alignments of the records of a FASTA file, and where they are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalefold.config.data import ShardsConfig
from scalefold.errors import InputError
from scalefold.predict.targets import Target, fasta_targets
from scalefold.raw.fasta import FastaRecord


def target(folder: Path, place: str) -> Target:
    (folder / place).mkdir(parents=True)
    (folder / place / "uniref90_hits.a3m").write_text(">mine\nMKV\n>other\nMKI\n")
    (found,) = fasta_targets([FastaRecord("mine", "MKV")], folder, ShardsConfig())
    return found


@pytest.mark.parametrize("place", ["mine/a3m", "mine", "pdb/mine/a3m"])
def test_alignments_are_found_in_each_usual_layout(place: str, tmp_path: Path) -> None:
    found = target(tmp_path, place)
    assert found.read().msa.msa.shape == (2, 3)
    assert found.alignment() != "query alone"


def test_alignments_elsewhere_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine/a3m.*--query-alone"):
        target(tmp_path, "other/a3m").read()
