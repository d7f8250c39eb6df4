"""Structures that are not an archive's: PDB files and programs' mmCIF say what the archive says."""

from __future__ import annotations

import datetime
import gzip
import logging
import random
import warnings
from pathlib import Path

import gemmi
import numpy as np
import pytest
from Bio.PDB.mmcifio import MMCIFIO
from Bio.PDB.PDBParser import PDBParser

from scalefold.errors import InputError
from scalefold.raw.mmcif import Chain, Entry, parse_entry, read_entry


def structure_of(path: Path) -> gemmi.Structure:
    structure = gemmi.read_structure(str(path))
    structure.setup_entities()
    return structure


def as_pdb(path: Path, *, seqres: bool = True) -> str:
    options = gemmi.PdbWriteOptions(seqres_records=seqres)
    return structure_of(path).make_pdb_string(options)


def with_gaps(chain: Chain) -> str:
    """The sequence from the first to the last residue with atoms, X where there are none."""
    observed = chain.atom_mask.any(axis=1)
    first, *_, last = np.flatnonzero(observed)
    letters = zip(chain.sequence, observed, strict=True)
    return "".join(letter if there else "X" for letter, there in letters)[first : last + 1]


def assert_same_atoms(found: Chain, expected: Chain) -> None:
    """Of all residues, or of those from the first with atoms to the last."""
    observed = np.flatnonzero(expected.atom_mask.any(axis=1))
    rows = slice(observed[0], observed[-1] + 1)
    if len(found) == len(expected):
        rows = slice(None)
    np.testing.assert_array_equal(found.atom_mask, expected.atom_mask[rows])
    np.testing.assert_allclose(found.positions, expected.positions[rows], atol=1e-3)


def pairs(found: Entry, path: Path) -> list[tuple[Chain, Chain]]:
    archive = read_entry(path)
    keys = [chain.auth_asym_id for chain in archive.chains]
    assert [chain.auth_asym_id for chain in found.chains] == keys
    return list(zip(found.chains, archive.chains, strict=True))


@pytest.mark.parametrize("suffix", [".pdb", ".pdb.gz", ".ent"])
def test_pdb_files_with_seqres_say_what_the_archive_says(
    demo_mmcif: list[Path], tmp_path: Path, suffix: str
) -> None:
    for path in demo_mmcif:
        content = as_pdb(path).encode()
        target = tmp_path / f"mine{suffix}"
        target.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
        for chain, expected in pairs(read_entry(target), path):
            assert chain.chain_key == f"mine_{expected.auth_asym_id}"
            assert chain.sequence == expected.sequence
            assert chain.resolution == pytest.approx(expected.resolution, abs=0.006)
            assert_same_atoms(chain, expected)


def test_pdb_files_without_seqres_have_the_residues_of_their_atoms(
    demo_mmcif: list[Path], tmp_path: Path
) -> None:
    for path in demo_mmcif:
        target = tmp_path / "mine.pdb"
        target.write_text(as_pdb(path, seqres=False))
        for chain, expected in pairs(read_entry(target), path):
            assert chain.sequence == with_gaps(expected)
            assert_same_atoms(chain, expected)


def test_mmcif_of_gemmi(demo_mmcif: list[Path], tmp_path: Path) -> None:
    """It states no types of components."""
    for path in demo_mmcif:
        target = tmp_path / "mine.cif"
        structure_of(path).make_mmcif_document().write_file(str(target))
        for chain, expected in pairs(read_entry(target), path):
            assert chain.sequence == expected.sequence
            assert_same_atoms(chain, expected)


@pytest.mark.parametrize("entry_id", ["1a8o", "1lcd", "3u8v", "3jqh"])
def test_mmcif_of_biopython(demo_mmcif: list[Path], tmp_path: Path, entry_id: str) -> None:
    """It has atoms alone; its label chains and numbers are none of the archive's."""
    path = next(p for p in demo_mmcif if p.name.startswith(entry_id))
    (tmp_path / "x.pdb").write_text(as_pdb(path))
    target = tmp_path / "mine.cif"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = MMCIFIO()
        writer.set_structure(PDBParser(QUIET=True).get_structure("x", tmp_path / "x.pdb"))
        writer.save(str(target))
    for chain, expected in pairs(read_entry(target), path):
        assert chain.chain_key == f"mine_{expected.auth_asym_id}"
        assert chain.sequence == with_gaps(expected)
        assert_same_atoms(chain, expected)


LACKING = [
    ["_chem_comp."],
    ["_chem_comp.", "_entity_poly."],
    ["_entry."],
    ["_struct_asym."],
    ["_entity_poly_seq."],
    ["_entity_poly_seq.", "_struct_asym.", "_chem_comp.", "_entity_poly.", "_entity."],
]


@pytest.mark.parametrize("categories", LACKING, ids=lambda names: "".join(names))
def test_mmcif_that_lacks_categories(demo_mmcif: list[Path], categories: list[str]) -> None:
    for path in demo_mmcif:
        block = gemmi.cif.read(str(path)).sole_block()
        for name in categories:
            block.find_mmcif_category(name).erase()
        found = parse_entry(block.as_string().encode() + b"#\n", "x", "mine")
        assert found.entry_id == ("mine" if "_entry." in categories else path.name[:4])
        block.find_mmcif_category("_database_2.").erase()
        assert parse_entry(block.as_string().encode() + b"#\n", "x", "mine").entry_id == "mine"
        assert found.release_date == read_entry(path).release_date
        for chain, expected in pairs(found, path):
            stated = "_entity_poly_seq." not in categories
            assert chain.sequence == (expected.sequence if stated else with_gaps(expected))
            assert_same_atoms(chain, expected)


def test_what_is_no_peptide_stays_none() -> None:
    content = b"data_x\n_entity_poly.entity_id 1\n_entity_poly.type polyribonucleotide\n"
    content += b"_struct_asym.id A\n_struct_asym.entity_id 1\n"
    content += b"_entity_poly_seq.entity_id 1\n_entity_poly_seq.num 1\n_entity_poly_seq.mon_id U\n"
    for item in ("label_asym_id A", "auth_asym_id A", "label_comp_id U", "label_seq_id 1"):
        content += f"_atom_site.{item}\n".encode()
    for item in ("label_atom_id CA", "Cartn_x 1", "Cartn_y 2", "Cartn_z 3"):
        content += f"_atom_site.{item}\n".encode()
    with pytest.raises(InputError, match="no protein chain"):
        parse_entry(content, "x")
    content = content.replace(b"polyribonucleotide", b"polypeptide(L)")
    assert parse_entry(content, "x").chains[0].sequence == "X"


@pytest.fixture
def pti(demo_mmcif: list[Path]) -> str:
    return as_pdb(next(p for p in demo_mmcif if p.name.startswith("5pti")), seqres=False)


def read(text: str, tmp_path: Path) -> Chain:
    (tmp_path / "mine.pdb").write_text(text)
    (chain,) = read_entry(tmp_path / "mine.pdb").chains
    return chain


def without(text: str, numbers: range) -> str:
    """Drop residues by number."""
    lines = text.splitlines(keepends=True)
    return "".join(x for x in lines if x[:4] != "ATOM" or int(x[22:26]) not in numbers)


def test_numbers_that_skip_are_missing_residues(
    pti: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = read(pti, tmp_path)
    assert not caplog.records
    chain = read(without(pti, range(10, 13)), tmp_path)
    assert chain.sequence == f"{whole.sequence[:9]}XXX{whole.sequence[12:]}"
    np.testing.assert_array_equal(chain.positions[12:], whole.positions[12:])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "mine.pdb" in caplog.text
    assert "PRO 9" in caplog.text


def test_bound_residues_have_none_between_whatever_their_numbers(
    pti: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = pti.splitlines(keepends=True)
    for i, line in enumerate(lines):
        if line.startswith("ATOM") and int(line[22:26]) > 20:
            lines[i] = f"{line[:22]}{int(line[22:26]) + 400:4}{line[26:]}"
    assert read("".join(lines), tmp_path).sequence == read(pti, tmp_path).sequence
    assert not caplog.records


def test_a_chain_without_a_name_is_chain_a(pti: str, tmp_path: Path) -> None:
    blank = "".join(
        f"{line[:21]} {line[22:]}" if line[:4] in ("ATOM", "TER ", "HETA") else line
        for line in pti.splitlines(keepends=True)
    )
    assert read(blank, tmp_path).chain_key == "mine_A"


def test_header_of_a_pdb_file(pti: str, tmp_path: Path) -> None:
    head = "REVDAT   2   24-FEB-09 5PTI    1       VERSN\nREVDAT   1   29-OCT-84 5PTI    0\n"
    assert read(head + pti, tmp_path).release_date == datetime.date(1984, 10, 29)
    assert read(pti, tmp_path).release_date is None
    with pytest.raises(InputError, match="REVDAT"):
        read(head.replace("29-OCT", "99-OCT") + pti, tmp_path)


def test_sequence_of_another_chain_is_refused(pti: str, tmp_path: Path) -> None:
    seqres = "SEQRES   1 A    3  TRP TRP TRP" + " " * 40 + "\n"
    with pytest.raises(InputError, match=r"mine\.pdb.*chain A"):
        read(seqres + pti, tmp_path)


def test_numbers_out_of_reach_are_refused(pti: str, tmp_path: Path) -> None:
    block = gemmi.read_pdb_string(pti).make_mmcif_block()
    atoms = block.find("_atom_site.", ["auth_seq_id", "Cartn_x"])
    for row in atoms:
        if row[0] == "30":
            row[0], row[1] = "2000000000", "500"
    with pytest.raises(InputError, match="2000000000"):
        parse_entry(block.as_string().encode(), "x")


def test_a_reference_to_a_sequence_that_is_not_there_is_refused(pti: str) -> None:
    """Gemmi ends with the error of an index, in place of one that speaks of the file."""
    block = gemmi.read_pdb_string(pti).make_mmcif_block()
    for category in ("_struct_ref.", "_struct_ref_seq."):
        block.find_mmcif_category(category).erase()
    names = ("align_id", "ref_id", "seq_align_beg", "seq_align_end", "pdbx_strand_id")
    others = ("db_align_beg", "db_align_end", "pdbx_db_accession", "pdbx_PDB_id_code")
    for name in (*names, *others):
        block.set_pair(f"_struct_ref_seq.{name}", "1")
    with pytest.raises(InputError, match=r"^x: "):
        parse_entry(block.as_string().encode(), "x")


@pytest.mark.parametrize("with_seqres", [True, False])
def test_a_ligand_with_the_number_of_the_last_residue_is_no_residue(
    pti: str, tmp_path: Path, with_seqres: bool
) -> None:
    lines = [
        line
        for line in pti.splitlines(keepends=True)
        if line.startswith("ATOM") or (with_seqres and line.startswith("SEQRES"))
    ]
    path = tmp_path / "5pti.pdb"
    path.write_text("".join(lines))
    (expected,) = read_entry(path).chains
    last = lines[-1]
    ligand = "HETATM" + last[6:12] + "ZN   " + " ZN" + last[20:76] + "ZN" + last[78:]
    water = "HETATM" + last[6:12] + " O   " + "HOH" + last[20:22] + " 101" + last[26:]
    path.write_text("".join([*lines, ligand, water]))
    (chain,) = read_entry(path).chains
    assert chain.sequence == expected.sequence
    assert (chain.atom_mask == expected.atom_mask).all()


def test_a_character_of_several_bytes_as_the_name_of_a_chain(pti: str, tmp_path: Path) -> None:
    lines = [
        line[:21] + "\u00e9" + line[22:] if line.startswith("ATOM") else line
        for line in pti.splitlines(keepends=True)
        if not line.startswith("SEQRES")
    ]
    path = tmp_path / "5pti.pdb"
    path.write_text("".join(lines), "latin-1")
    (chain, *_) = read_entry(path).chains
    assert chain.auth_asym_id.isascii()
    assert chain.atom_mask.any()


@pytest.mark.parametrize("form", ["pdb", "mmcif"])
def test_damaged_files_end_in_a_result_or_an_error_of_the_input(
    pti: str, tmp_path: Path, form: str
) -> None:
    text = pti if form == "pdb" else gemmi.read_pdb_string(pti).make_mmcif_block().as_string()
    path = tmp_path / ("x.pdb" if form == "pdb" else "x.cif")
    rng = random.Random(0)
    errors: list[str] = []
    for _ in range(60):
        content = bytearray(text.encode())
        for _ in range(rng.choice([1, 20, 500])):
            content[rng.randrange(len(content))] = rng.choice(b"\n ?.'\";_#aA1x9\xff")
        path.write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
        try:
            read_entry(path)
        except InputError as error:
            errors.append(str(error))
    assert errors
    assert all(str(path) in error for error in errors)
