"""Alignments of the records of a FASTA file, and where they are looked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalefold.config.data import MaxRowsConfig, ShardsConfig
from scalefold.errors import InputError
from scalefold.predict.targets import Target, fasta_targets
from scalefold.raw.fasta import FastaRecord


def target(folder: Path, place: str, **shards: Any) -> Target:
    (folder / place).mkdir(parents=True, exist_ok=True)
    (folder / place / "uniref90_hits.a3m").write_text(">mine\nMKV\n>other\nMKI\n")
    (found,) = fasta_targets([FastaRecord("mine", "MKV")], folder, ShardsConfig(**shards))
    return found


@pytest.mark.parametrize("place", ["mine/a3m", "mine", "pdb/mine/a3m"])
def test_alignments_are_found_in_each_usual_layout(place: str, tmp_path: Path) -> None:
    found = target(tmp_path, place)
    assert found.read().msa.msa.shape == (2, 3)
    assert found.alignment() != "query alone"


def test_own_limits_of_rows_are_another_alignment(tmp_path: Path) -> None:
    whole = target(tmp_path, "mine")
    for shards in ({"max_rows": MaxRowsConfig(uniref90_hits=1)}, {"max_msa_rows": 1}):
        cut = target(tmp_path, "mine", **shards)
        assert len(cut.read().msa.msa) == 1
        assert cut.alignment() != whole.alignment()
    # those of a preset are no part of it, so predictions of earlier versions stay valid
    limits = MaxRowsConfig(uniref90_hits=None, mgnify_hits=None)
    assert target(tmp_path, "mine", max_rows=limits).alignment() == whole.alignment()


def test_alignments_elsewhere_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine/a3m.*--query-alone"):
        target(tmp_path, "other/a3m").read()
