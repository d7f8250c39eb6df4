"""Alignments of the records of a FASTA file, and where they are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalefold.config.data import ShardsConfig
from scalefold.errors import InputError
from scalefold.predict.targets import fasta_targets
from scalefold.raw.fasta import FastaRecord


@pytest.mark.parametrize(
    ("place", "mend"),
    [
        ("pdb/mine/a3m", "They are in .*pdb: give that folder"),
        ("mine", "They are in .*mine: move them"),
        ("other/a3m", "--query-alone"),
    ],
)
def test_alignments_elsewhere_are_pointed_at(place: str, mend: str, tmp_path: Path) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "uniref90_hits.a3m").write_text(">mine\nMKV\n")
    (target,) = fasta_targets([FastaRecord("mine", "MKV")], tmp_path, ShardsConfig())
    with pytest.raises(InputError, match=rf"mine/a3m: has no.*{mend}"):
        target.read()
