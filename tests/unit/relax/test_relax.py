"""Relaxation by OpenMM, where it is installed."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import gemmi
import pytest
import torch
from tests.unit.conftest import DEMO
from typer.testing import CliRunner

from scalefold.cli import app
from scalefold.errors import InputError
from scalefold.predict.model_cif import model_cif
from scalefold.raw.a3m import encode_sequence
from scalefold.raw.mmcif import read_entry
from scalefold.relax.run import relax_predictions
from scalefold.relax.violations import violations

needs_openmm = pytest.mark.skipif(
    importlib.util.find_spec("openmm") is None, reason="OpenMM is not installed"
)
ENTRY = DEMO / "mirror/wwpdb/pub/pdb/data/structures/divided/mmCIF/pt/5pti.cif.gz"


@pytest.fixture(scope="module")
def chain() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """BPTI: 58 residues with all heavy atoms and three disulphide bridges."""
    (found,) = read_entry(ENTRY).chains
    aatype = torch.from_numpy(found.aatype).long()
    return aatype, torch.from_numpy(found.positions).double(), torch.from_numpy(found.atom_mask)


def bent(positions: torch.Tensor, angstrom: float = 2.5) -> torch.Tensor:
    """Residue 31 moved by 2.5 Å into others: two broken bonds, and clashes."""
    moved = positions.clone()
    moved[30] += angstrom * torch.nn.functional.normalize(
        positions.mean((0, 1)) - moved[30, 1], dim=0
    )
    return moved


def write_prediction(folder: Path, sequence: str, positions: Any, mask: Any) -> None:
    folder.mkdir(parents=True)
    aatype = torch.from_numpy(encode_sequence(sequence)).long()
    plddt = torch.full((len(sequence),), 70.0)
    text = model_cif(folder.name, aatype, positions, mask, plddt)
    (folder / "rank_1_w.cif").write_text(text)
    files = {"model_cif": "rank_1_w.cif", "pdb": "rank_1_w.pdb"}
    model = {"files": files, "ptm": None, "plddt": plddt.tolist()}
    record = {"name": folder.name, "sequence": sequence, "models": [model]}
    (folder / "prediction.json").write_text(json.dumps(record))


def table(out: Path) -> dict[str, dict[str, str]]:
    with (out / "relaxations.tsv").open() as file:
        return {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}


@needs_openmm
def test_violations_are_mended_and_the_rest_hardly_moves(chain) -> None:
    from scalefold.relax.amber import relax

    aatype, positions, mask = chain
    start = bent(positions)
    relaxed, (before_energy, after_energy), rounds = relax(aatype, start, mask, threads=1)
    before, after = (violations(aatype, x, mask) for x in (start, relaxed))
    assert rounds == 1
    assert before["broken_bonds"] == 2
    assert before["clashes"] > 0
    assert after["clashes"] == 0
    assert after["violation_loss"] < 0.2 * before["violation_loss"]
    assert after_energy < before_energy
    far = torch.ones(len(aatype), dtype=torch.bool)
    far[25:36] = False
    assert float((relaxed - positions)[far][mask[far]].norm(dim=-1).max()) < 1.0
    assert torch.equal(relaxed[~mask], start[~mask])


@needs_openmm
def test_what_the_first_round_leaves_broken_is_let_go_in_the_next(chain, monkeypatch) -> None:
    from scalefold.relax import amber

    aatype, positions, mask = chain
    start = bent(positions, 8.0)
    relaxed = amber.relax(aatype, start, mask, threads=1)
    assert relaxed.rounds > 1
    assert violations(aatype, relaxed.positions, mask)["broken_bonds"] == 0
    monkeypatch.setattr(amber, "_MOST_ROUNDS", 1)
    once = amber.relax(aatype, start, mask, threads=1)
    assert once.rounds == 1
    assert violations(aatype, once.positions, mask)["broken_bonds"] > 0


@needs_openmm
def test_residues_of_unknown_type_and_missing_atoms_are_named(chain) -> None:
    from scalefold.relax.amber import relax

    aatype, positions, mask = chain
    unknown, lacking = aatype.clone(), mask.clone()
    unknown[4], lacking[6, 1] = 20, False
    with pytest.raises(InputError, match="residue 5"):
        relax(unknown, positions, mask, threads=1)
    with pytest.raises(InputError, match="residue 7"):
        relax(aatype, positions, lacking, threads=1)


@needs_openmm
def test_the_command_goes_on_and_lists_what_fails(chain, tmp_path: Path) -> None:
    _, positions, mask = chain
    sequence = read_entry(ENTRY).chains[0].sequence
    source, out = tmp_path / "predictions", tmp_path / "relaxed"
    write_prediction(source / "good", sequence[:40], bent(positions)[:40], mask[:40])
    write_prediction(source / "unknown", "X" + sequence[1:], positions, mask)
    words = ["relax", str(source), "--out", str(out), "--threads", "1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    rows = table(out)
    assert {name: row["fate"] for name, row in rows.items()} == {
        "good": "relaxed", "unknown": "failed",
    }  # fmt: skip
    assert float(rows["good"]["violation_loss_after"]) < float(
        rows["good"]["violation_loss_before"]
    )
    assert "residue 1 " in rows["unknown"]["reason"]
    for name in ("rank_1_w.cif", "rank_1_w.pdb"):
        found = gemmi.read_structure(str(out / "good" / name))
        assert len(found[0][0]) == 40
        assert found[0][0][3][0].b_iso == 70.0
    written = (out / "good/relaxation.json").stat().st_mtime_ns
    CliRunner().invoke(app, words)
    assert table(out)["good"]["fate"] == "there"
    assert (out / "good/relaxation.json").stat().st_mtime_ns == written
    path = source / "good/rank_1_w.cif"
    path.write_text(path.read_text() + "#\n")
    CliRunner().invoke(app, words)
    assert "Move it away" in table(out)["good"]["reason"]


def test_without_openmm_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install '\.\[relax\]'"):
        relax_predictions(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_predictions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalefold.relax.run.check_openmm", lambda: None)
    with pytest.raises(InputError, match="has no predictions"):
        relax_predictions(tmp_path, tmp_path / "out")
