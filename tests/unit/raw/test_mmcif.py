from __future__ import annotations

import datetime
import gzip
import warnings
from pathlib import Path

import gemmi
import numpy as np
import pytest
from Bio.Data.PDBData import protein_letters_3to1_extended
from Bio.PDB.MMCIF2Dict import MMCIF2Dict
from Bio.PDB.MMCIFParser import MMCIFParser

from scalefold.chem.residues import ATOM37, ATOM37_INDEX, RESTYPES_WITH_X
from scalefold.errors import InputError
from scalefold.raw.mmcif import Chain, Entry, parse_entry, read_entry

HEADER = """data_TEST
_entry.id TEST
_exptl.method 'X-RAY DIFFRACTION'
loop_
_struct_asym.id
_struct_asym.entity_id
A 1
loop_
_chem_comp.id
_chem_comp.type
ALA 'L-peptide linking'
ARG 'L-peptide linking'
MSE 'L-peptide linking'
SER 'L-peptide linking'
XYZ 'L-peptide linking'
DA 'DNA linking'
"""
ATOMS = """loop_
_atom_site.label_asym_id
_atom_site.auth_asym_id
_atom_site.label_comp_id
_atom_site.label_seq_id
_atom_site.label_atom_id
_atom_site.label_alt_id
_atom_site.occupancy
_atom_site.pdbx_PDB_model_num
_atom_site.Cartn_x
_atom_site.Cartn_y
_atom_site.Cartn_z
"""


def make_entry(monomers: list[tuple[int, str]], atoms: str, header: str = HEADER) -> Entry:
    sequence = "loop_\n_entity_poly_seq.entity_id\n_entity_poly_seq.num\n_entity_poly_seq.mon_id\n"
    sequence += "".join(f"1 {number} {name}\n" for number, name in monomers)
    return parse_entry((header + sequence + ATOMS + atoms).encode(), "test.cif")


def biopython_chain(path: Path, chain: Chain) -> tuple[str, np.ndarray, np.ndarray]:
    """Sequence, positions and mask of a chain by Biopython's parser, keyed on label numbering."""
    with warnings.catch_warnings(), gzip.open(path, "rt") as file:
        warnings.simplefilter("ignore")
        table = MMCIF2Dict(file)
        file.seek(0)
        parser = MMCIFParser(QUIET=True, auth_chains=False, auth_residues=False)
        model = next(parser.get_structure("x", file).get_models())
    entity = dict(zip(table["_struct_asym.id"], table["_struct_asym.entity_id"], strict=True))
    monomers: dict[int, str] = {}
    for owner, number, name in zip(
        table["_entity_poly_seq.entity_id"],
        table["_entity_poly_seq.num"],
        table["_entity_poly_seq.mon_id"],
        strict=True,
    ):
        if owner == entity[chain.label_asym_id]:
            monomers.setdefault(int(number), name)
    sequence = "".join(protein_letters_3to1_extended.get(n, "X") for n in monomers.values())
    positions = np.zeros((len(monomers), 37, 3), np.float32)
    mask = np.zeros((len(monomers), 37), bool)
    for residue in model[chain.label_asym_id]:
        number = residue.id[1]
        if number not in monomers:
            continue
        if residue.is_disordered() == 2:
            residue.disordered_select(monomers[number])
        for atom in residue:
            name = "SD" if (residue.get_resname(), atom.name) == ("MSE", "SE") else atom.name
            if name in ATOM37_INDEX:
                positions[number - 1, ATOM37_INDEX[name]] = atom.coord
                mask[number - 1, ATOM37_INDEX[name]] = True
        cd, first, second = (ATOM37_INDEX[n] for n in ("CD", "NH1", "NH2"))
        if residue.get_resname() == "ARG" and mask[number - 1, [cd, first, second]].all():
            row = positions[number - 1]
            if np.linalg.norm(row[first] - row[cd]) > np.linalg.norm(row[second] - row[cd]):
                row[[first, second]] = row[[second, first]]
    return sequence, positions, mask


def assert_same_as_biopython(path: Path) -> int:
    entry = read_entry(path)
    for chain in entry.chains:
        sequence, positions, mask = biopython_chain(path, chain)
        assert chain.sequence == sequence, chain.chain_key
        np.testing.assert_array_equal(chain.atom_mask, mask, err_msg=chain.chain_key)
        np.testing.assert_array_equal(chain.positions, positions, err_msg=chain.chain_key)
    return len(entry.chains)


def test_agrees_with_biopython_on_bundled_files(demo_mmcif: list[Path]) -> None:
    assert sum(assert_same_as_biopython(path) for path in demo_mmcif) >= 24


def test_agrees_with_biopython_on_shared_mirror(shared_mirror: Path) -> None:
    paths = sorted((shared_mirror / "wwpdb").rglob("*.cif.gz"))
    assert paths
    for path in paths:
        assert_same_as_biopython(path)


def test_chain_invariants(demo_mmcif: list[Path]) -> None:
    for path in demo_mmcif:
        for chain in read_entry(path).chains:
            n = len(chain)
            assert chain.aatype.shape == (n,)
            assert chain.aatype.dtype == np.uint8
            assert chain.positions.shape == (n, len(ATOM37), 3)
            assert chain.positions.dtype == np.float32
            assert chain.atom_mask.dtype == np.bool_
            letters = "".join(RESTYPES_WITH_X[a] for a in chain.aatype)
            assert all(a == b or b == "X" for a, b in zip(chain.sequence, letters, strict=True))
            assert not chain.positions[~chain.atom_mask].any()


@pytest.mark.parametrize(
    ("entry_id", "method", "resolution", "date"),
    [
        ("5pti", "x-ray diffraction,neutron diffraction", 1.0, datetime.date(1984, 10, 29)),
        ("2crb", "solution nmr", None, datetime.date(2005, 11, 20)),
        ("3zee", "electron microscopy", 6.1, datetime.date(2013, 10, 16)),
        ("1a8o", "x-ray diffraction", 1.7, None),
    ],
)
def test_header(
    demo_mmcif: list[Path],
    entry_id: str,
    method: str,
    resolution: float | None,
    date: datetime.date | None,
) -> None:
    entry = read_entry(next(p for p in demo_mmcif if p.name.startswith(entry_id)))
    assert (entry.entry_id, entry.method) == (entry_id, method)
    assert (entry.resolution, entry.release_date) == (resolution, date)


def test_microheterogeneity_does_not_shift_the_sequence(demo_mmcif: list[Path]) -> None:
    path = next(p for p in demo_mmcif if p.name.startswith("3jqh"))
    block = gemmi.cif.read(str(path)).sole_block()
    rows = len(block.find_values("_entity_poly_seq.num"))
    chain = read_entry(path).chain("3jqh_A")
    assert rows == 170  # positions listed with their alternatives
    assert len(chain) == 167
    # The only backbone there is must be unbroken: neighbours' CA 3.8 Å apart.
    seen = np.flatnonzero(chain.atom_mask[:, 1])
    steps = np.linalg.norm(np.diff(chain.positions[seen, 1], axis=0), axis=1)
    assert np.all(np.diff(seen) == 1)
    assert np.all(np.abs(steps - 3.8) < 0.2)


def test_alternative_monomers_atoms_are_left_out() -> None:
    atoms = "A A SER 1 CA A 0.6 1 9 9 9\nA A SER 1 OG A 0.6 1 8 8 8\nA A ALA 1 CA B 0.4 1 1 2 3\n"
    chain = make_entry([(1, "ALA"), (1, "SER"), (2, "ALA")], atoms).chains[0]
    assert chain.sequence == "AA"
    assert chain.atom_mask.sum() == 1
    np.testing.assert_array_equal(chain.positions[0, 1], [1, 2, 3])


def test_highest_occupancy_counts_and_the_first_of_equals() -> None:
    atoms = (
        "A A ALA 1 CA A 0.3 1 1 1 1\nA A ALA 1 CA B 0.7 1 2 2 2\n"
        "A A ALA 1 CB A 0.5 1 3 3 3\nA A ALA 1 CB B 0.5 1 4 4 4\n"
        "A A ALA 1 C A ? 1 5 5 5\nA A ALA 1 O . 0.0 1 6 6 6\n"
    )
    chain = make_entry([(1, "ALA")], atoms).chains[0]
    assert [chain.positions[0, ATOM37_INDEX[n], 0] for n in ("CA", "CB", "C", "O")] == [2, 3, 5, 6]


def test_selenium_becomes_sd_only_in_mse() -> None:
    atoms = "A A MSE 1 SE . 1 1 1 2 3\nA A XYZ 2 SE . 1 1 1 2 3\nA A XYZ 2 CA . 1 1 4 5 6\n"
    chain = make_entry([(1, "MSE"), (2, "XYZ")], atoms).chains[0]
    assert chain.sequence == "MX"
    assert chain.aatype.tolist() == [RESTYPES_WITH_X.index("M"), 20]
    assert chain.atom_mask[0].nonzero()[0].tolist() == [ATOM37_INDEX["SD"]]
    assert chain.atom_mask[1].nonzero()[0].tolist() == [ATOM37_INDEX["CA"]]


def test_parents_of_modified_residues() -> None:
    atoms = "A A PCA 1 CA . 1 1 1 2 3\nA A DSN 2 CA . 1 1 4 5 6\n"
    chain = make_entry([(1, "PCA"), (2, "DSN"), (3, "ALA")], atoms).chains[0]
    assert chain.sequence == "QSA"
    assert chain.other_parents == {0: "E"}


@pytest.mark.parametrize(("first", "second"), [(1.0, 2.0), (2.0, 1.0)])
def test_arginine_nh1_is_the_nearer_to_cd(first: float, second: float) -> None:
    atoms = (
        "A A ARG 1 CD . 1 1 0 0 0\n"
        f"A A ARG 1 NH1 . 1 1 {first} 0 0\nA A ARG 1 NH2 . 1 1 {second} 0 0\n"
    )
    chain = make_entry([(1, "ARG")], atoms).chains[0]
    assert chain.positions[0, ATOM37_INDEX["NH1"], 0] == 1.0
    assert chain.positions[0, ATOM37_INDEX["NH2"], 0] == 2.0


def test_first_model_author_chain_quotes_and_gaps() -> None:
    atoms = (
        "A 'B 1' ALA 2 \"CA\" . 1 1 1 2 3\nA 'B 1' ALA 2 HA . 1 1 1 2 3\n"
        "A 'B 1' ALA 2 CB . 1 1 ? 2 3\nA 'B 1' ALA 1 CA . 1 2 7 7 7\n"
    )
    chain = make_entry([(1, "ALA"), (2, "ALA"), (3, "ALA")], atoms).chains[0]
    assert (chain.chain_key, chain.label_asym_id) == ("test_B 1", "A")
    assert chain.atom_mask.sum(axis=1).tolist() == [0, 1, 0]


def test_chains_may_differ_in_case_alone() -> None:
    """As in 6HU9, which has chains A to U and a to x."""
    header = HEADER.replace("A 1\n", "A 1\nB 1\n")
    atoms = "A K ALA 1 CA . 1 1 1 2 3\nB k ALA 1 CA . 1 1 4 5 6\n"
    entry = make_entry([(1, "ALA")], atoms, header)
    assert [chain.chain_key for chain in entry.chains] == ["test_K", "test_k"]
    assert entry.chain("test_k").positions[0, ATOM37_INDEX["CA"]].tolist() == [4, 5, 6]


def test_long_entry_ids() -> None:
    header = HEADER.replace("_entry.id TEST", "_entry.id pdb_00001ABC")
    entry = make_entry([(1, "ALA")], "A Z ALA 1 CA . 1 1 1 2 3\n", header)
    assert entry.chains[0].chain_key == "pdb_00001abc_Z"
    for key in ("pdb_00001abc_Z", "1abc_Z"):  # either form names the entry
        assert entry.chain(key).chain_key == key
    with pytest.raises(InputError, match="2abc_Z"):
        entry.chain("2abc_Z")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("_refine.ls_d_res_high 1.5\n_reflns.d_resolution_high 1.4\n", 1.5),
        ("_refine.ls_d_res_high ?\n_em_3d_reconstruction.resolution 3.2\n", 3.2),
        ("_refine.ls_d_res_high .\n_reflns.d_resolution_high 2.25\n", 2.25),
        ("_refine.ls_d_res_high 0.0\n", None),
        ("", None),
    ],
)
def test_resolution_cascade(items: str, expected: float | None) -> None:
    atoms = "A A ALA 1 CA . 1 1 1 2 3\n"
    assert make_entry([(1, "ALA")], atoms, HEADER + items).resolution == expected


def test_dna_is_not_a_protein_chain(demo_mmcif: list[Path]) -> None:
    entry = read_entry(next(p for p in demo_mmcif if p.name.startswith("1lcd")))
    assert [chain.chain_key for chain in entry.chains] == ["1lcd_A"]
    with pytest.raises(InputError, match=r"'1lcd_B'.*1lcd_A"):
        entry.chain("1lcd_B")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.cif.gz", gzip.compress(b"data_x\n" * 99, mtime=0)[:-9], "truncated"),
        ("a.cif.gz", b"data_x\n_entry.id x\n", "b'data.*gzip"),
        ("a.cif.gz", b"\x1f\x8b\x08\x00" + b"\x07" * 60, "damaged"),
        ("a.cif", b"<html>404</html>", "line 1"),
        ("a.cif", b"", "data block"),
        ("a.cif", b"data_x\n_entry.id x\n", "no atoms"),
        ("a.pdb", b"<html>404</html>", "no atoms"),
        ("a.pdb.gz", b"ATOM  ", "not gzipped"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_entry(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("at_line_end", [True, False])
def test_a_file_cut_before_it_was_compressed_may_be_the_mirrors_fault(
    demo_mmcif: list[Path], tmp_path: Path, at_line_end: bool
) -> None:
    """At a line's end or inside of a line; another download from there brings the same."""
    content = gzip.decompress(demo_mmcif[0].read_bytes())
    line_end = content.index(b"\nATOM ", content.index(b"\nATOM ") + 1) + 1
    cut = line_end if at_line_end else line_end - 10
    path = tmp_path / demo_mmcif[0].name
    path.write_bytes(gzip.compress(content[:cut], mtime=0))
    with pytest.raises(InputError, match="mirror"):
        read_entry(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_entry(tmp_path / "none.cif.gz")
    (tmp_path / "none.cif").touch()
    with pytest.raises(InputError, match=r"none\.cif\.gz: no such file \(none\.cif is there\)"):
        read_entry(tmp_path / "none.cif.gz")
    with pytest.raises(InputError, match="is a folder"):
        read_entry(tmp_path)


def test_entries_without_usable_protein() -> None:
    with pytest.raises(InputError, match="no protein chain"):
        make_entry([(1, "DA")], "A A DA 1 P . 1 1 1 2 3\n")
    with pytest.raises(InputError, match="coordinates for none"):
        make_entry([(1, "ALA")], "A A ALA . CA . 1 1 1 2 3\n")
    with pytest.raises(InputError, match=r"A, B .*'test_C'"):
        make_entry(
            [(1, "ALA")],
            "A C ALA 1 CA . 1 1 1 2 3\nB C ALA 1 CA . 1 1 1 2 3\n",
            HEADER.replace("A 1\n", "A 1\nB 1\n"),
        )
    header = HEADER + "_pdbx_audit_revision_history.revision_date soon\n"
    with pytest.raises(InputError, match=r"revision_date .*\['soon'\]"):
        make_entry([(1, "ALA")], "A A ALA 1 CA . 1 1 1 2 3\n", header)
