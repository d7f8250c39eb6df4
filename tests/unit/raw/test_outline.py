"""Names of an entry's chains without its atoms: the same as with them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from scalefold.errors import InputError
from scalefold.raw.mmcif import read_entry
from scalefold.raw.outline import read_outline


def test_says_what_the_whole_file_says(demo_mmcif: list[Path]) -> None:
    for path in demo_mmcif:
        outline, entry = read_outline(path), read_entry(path)
        names = [(c.chain_key, c.label_asym_id, c.sequence, c.num_observed) for c in outline.chains]
        assert names == [
            (c.chain_key, c.label_asym_id, c.sequence, c.atom_mask.any(1).sum())
            for c in entry.chains
        ], path
        assert (outline.entry_id, outline.method) == (entry.entry_id, entry.method)
        assert outline.resolution == entry.resolution
        assert outline.release_date == entry.release_date


def test_entities_are_the_files(demo: Path) -> None:
    """1LCD is a complex with DNA, whose strands are entities 1 and 2; 1AY7 has two proteins."""
    folder = demo / "mirror/wwpdb"
    entities = {
        chain.chain_key: chain.entity
        for name in ("1lcd", "1ay7", "4i6p")
        for path in folder.rglob(f"{name}.cif.gz")
        for chain in read_outline(path).chains
    }
    assert entities == {"1lcd_A": "3", "1ay7_A": "1", "1ay7_B": "2", "4i6p_A": "1", "4i6p_B": "1"}


def test_structures_of_programs_are_read_whole(demo_mmcif: list[Path], tmp_path: Path) -> None:
    import gemmi

    path = next(path for path in demo_mmcif if path.name == "1ay7.cif.gz")
    mine = tmp_path / "mine.pdb"
    mine.write_text(gemmi.read_structure(str(path)).make_pdb_string())
    outline = read_outline(mine)
    assert [chain.chain_key for chain in outline.chains] == ["mine_A", "mine_B"]
    assert {chain.entity for chain in outline.chains} == {None}


def test_a_cut_file_is_an_error(demo_mmcif: list[Path], tmp_path: Path) -> None:
    cut = tmp_path / "1abc.cif.gz"
    cut.write_bytes(demo_mmcif[0].read_bytes()[:2000])
    with pytest.raises(InputError, match="truncated"):
        read_outline(cut)
    cut.write_bytes(gzip.compress(b"not mmCIF"))
    with pytest.raises(InputError):
        read_outline(cut)
