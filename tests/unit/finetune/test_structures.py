"""Structures of any names and forms become one mirror."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import gemmi
import numpy as np
import pytest

from scalefold.chains import folders
from scalefold.errors import InputError
from scalefold.finetune.structures import Structures, collect_structures
from scalefold.raw.mmcif import read_entry

WWPDB = Path(__file__).parents[3] / "demo/mirror/wwpdb/pub/pdb/data/structures/divided/mmCIF"
BPTI = WWPDB / "pt/5pti.cif.gz"


def _collect(folder: Path, mirror: Path, jobs: int = 1) -> Structures:
    return collect_structures(folder, mirror, 10**9, jobs)


def _write_pdb(source: Path, target: Path) -> None:
    gemmi.read_structure(str(source)).write_pdb(str(target))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "structures"
    (folder / "below").mkdir(parents=True)
    return folder


def test_a_pdb_file_says_the_same_in_the_mirror(folder: Path, tmp_path: Path) -> None:
    _write_pdb(BPTI, folder / "Design-1.pdb")
    found = _collect(folder, tmp_path / "mirror")
    assert list(found.sequences) == ["design-1_A"]
    before = read_entry(folder / "Design-1.pdb")
    after = read_entry(tmp_path / "mirror/design-1.cif.gz")
    assert (before.entry_id, before.method, before.resolution, before.release_date) == (
        after.entry_id, after.method, after.resolution, after.release_date,
    )  # fmt: skip
    for one, other in zip(before.chains, after.chains, strict=True):
        assert (one.chain_key, one.sequence) == (other.chain_key, other.sequence)
        np.testing.assert_array_equal(one.atom_mask, other.atom_mask)
        np.testing.assert_allclose(one.positions, other.positions, atol=1e-3)  # PDB's digits


def test_forms_and_folders_may_be_mixed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(BPTI, folder / "below/any-name.cif.gz")  # an archive's file has its entry's name
    (folder / "1a8o.cif").write_bytes(gzip.decompress((WWPDB / "a8/1a8o.cif.gz").read_bytes()))
    _write_pdb(WWPDB / "lc/1lcd.cif.gz", folder / "1LCD.ent")
    (folder / "notes.txt").write_text("no structure")
    found = _collect(folder, tmp_path / "mirror")
    assert list(found.sequences) == ["1a8o_A", "1lcd_A", "5pti_A"]
    assert (found.num_files, found.rejected) == (3, [])
    mirror = sorted(path.name for path in (tmp_path / "mirror").iterdir())
    assert mirror == ["1a8o.cif.gz", "1lcd.cif.gz", "5pti.cif.gz"]
    monkeypatch.setattr(folders, "_CHUNK", 2)
    assert _collect(folder, tmp_path / "other", jobs=2) == found


def test_what_cannot_be_used_has_a_line_and_the_rest_goes_on(folder: Path, tmp_path: Path) -> None:
    shutil.copy(BPTI, folder / "5pti.cif.gz")
    shutil.copy(BPTI, folder / "below/again.cif.gz")
    (folder / "empty.cif").write_text("")
    (folder / "text.pdb").write_text("not a protein\n")
    (folder / "cut.cif.gz").write_bytes(BPTI.read_bytes()[:5000])
    _write_pdb(BPTI, folder / "my protein.pdb")
    _write_pdb(BPTI, folder / "abc.pdb")  # too short for an entry
    found = _collect(folder, tmp_path / "mirror")
    assert list(found.sequences) == ["5pti_A"]
    reasons = {one.chain_key: one.reason for one in found.rejected}
    assert "also that of 5pti.cif.gz" in reasons.pop("below/again.cif.gz")
    assert {"empty.cif", "text.pdb", "cut.cif.gz", "my protein.pdb", "abc.pdb"} == set(reasons)
    assert not any("\n" in reason for reason in reasons.values())
    assert reasons["empty.cif"].startswith("holds no mmCIF data block")
    assert "Name the file" in reasons["my protein.pdb"]
    assert [path.name for path in (tmp_path / "mirror").iterdir()] == ["5pti.cif.gz"]


def test_the_mirror_follows_the_folder(folder: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    shutil.copy(BPTI, folder / "5pti.cif.gz")
    _write_pdb(WWPDB / "a8/1a8o.cif.gz", folder / "gone.pdb")
    _collect(folder, mirror)
    before = (mirror / "5pti.cif.gz").stat().st_mtime_ns
    (folder / "gone.pdb").unlink()
    _collect(folder, mirror)
    assert [path.name for path in mirror.iterdir()] == ["5pti.cif.gz"]
    assert (mirror / "5pti.cif.gz").stat().st_mtime_ns == before


def test_a_folder_without_structures_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no structures"):
        _collect(folder, tmp_path / "mirror")
    with pytest.raises(InputError, match="no such folder"):
        _collect(folder / "absent", tmp_path / "mirror")
    (folder / "file").touch()
    with pytest.raises(InputError, match="is not a folder"):
        _collect(folder / "file", tmp_path / "mirror")
    (folder / "text.pdb").write_text("not a protein\n")
    with pytest.raises(InputError, match=r"none of 1 .*text\.pdb"):
        _collect(folder, tmp_path / "mirror")
