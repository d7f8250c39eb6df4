"""What is written as a predicted structure can be read as a structure."""

from __future__ import annotations

from pathlib import Path

import gemmi
import numpy as np
import torch

from scalefold.chem.residues import ATOM37_MASK
from scalefold.evaluate.structure_file import structure_path, write_structure
from scalefold.raw.mmcif import read_entry


def test_a_written_structure_is_read_as_it_was_predicted(tmp_path: Path) -> None:
    aatype = torch.arange(21)
    mask = torch.tensor(ATOM37_MASK)[aatype] > 0  # none of the unknown residue
    positions = torch.randn(21, 37, 3, generator=torch.Generator().manual_seed(0)) * 20
    path = structure_path(tmp_path, "1abc_A")
    write_structure(path, "1abc_A", aatype, positions, mask, torch.full((21,), 70.0))
    (chain,) = read_entry(path).chains
    assert chain.aatype.tolist() == aatype.tolist()
    wanted = mask.numpy()
    swapped = 1  # NH1 and NH2 of arginine
    np.testing.assert_array_equal(chain.atom_mask, wanted)
    others = np.arange(21) != swapped
    expected = np.where(wanted[..., None], positions.numpy(), 0.0)
    np.testing.assert_allclose(chain.positions[others], expected[others], atol=1e-3)
    block = gemmi.cif.read(str(path)).sole_block()
    assert block.find_value("_entry.id") == "1abc_A"
    assert len(block.find_values("_ma_qa_metric_local.metric_value")) == 20
    assert all("peptide" in kind for kind in block.find_values("_chem_comp.type"))
