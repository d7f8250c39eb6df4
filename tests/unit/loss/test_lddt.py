"""lDDT of C-alpha atoms, against biotite and by hand."""

from __future__ import annotations

from typing import Any

import biotite.structure
import numpy as np
import pytest
import torch
from torch import Tensor

from scalefold.loss.lddt import lddt, lddt_per_residue


def _atoms(points: Tensor) -> biotite.structure.AtomArray:
    atoms = biotite.structure.AtomArray(len(points))
    atoms.coord = points.numpy().astype(np.float32)
    atoms.res_id = np.arange(len(points))
    atoms.atom_name[:] = "CA"
    atoms.element[:] = "C"
    return atoms


def _pair(make_truth: Any, noise: float) -> tuple[Tensor, Tensor]:
    true = make_truth(0, 58)["all_atom_positions"][:, :, 1]
    generator = torch.Generator().manual_seed(int(10 * noise))
    return true + noise * torch.randn(true.shape, generator=generator, dtype=torch.float64), true


@pytest.mark.parametrize("noise", [0.2, 1.0, 3.0])
def test_equals_biotite(make_truth: Any, noise: float) -> None:
    predicted, true = _pair(make_truth, noise)
    mask = torch.ones(1, 58)
    reference = biotite.structure.lddt(_atoms(true[0]), _atoms(predicted[0]))
    assert lddt(predicted, true, mask).item() == pytest.approx(reference, abs=1e-6)
    per_residue = biotite.structure.lddt(
        _atoms(true[0]), _atoms(predicted[0]), aggregation="residue"
    )
    np.testing.assert_allclose(lddt_per_residue(predicted, true, mask)[0], per_residue, atol=1e-6)


def test_masked_residues_do_not_count(make_truth: Any) -> None:
    predicted, true = _pair(make_truth, 1.0)
    mask = torch.ones(1, 58)
    mask[0, 10:20] = 0.0
    kept = mask[0].bool()
    ones = torch.ones(1, 48)
    torch.testing.assert_close(
        lddt(predicted, true, mask), lddt(predicted[:, kept], true[:, kept], ones)
    )
    torch.testing.assert_close(
        lddt_per_residue(predicted, true, mask)[:, kept],
        lddt_per_residue(predicted[:, kept], true[:, kept], ones),
    )


def test_thresholds_and_radius() -> None:
    true = torch.tensor([[0.0, 0, 0], [10, 0, 0], [0, 14.9, 0], [0, 0, 15.1]]).double()
    mask = torch.ones(4)
    predicted = true.clone()
    predicted[1, 0] = 10.7  # kept within 1, 2 and 4 Å
    found = lddt_per_residue(predicted, true, mask)
    # residue 0 sees residues 1 (three quarters) and 2; 3 is too far from all
    assert found[0].item() == pytest.approx((0.75 + 1.0) / 2)
    assert found[1].item() == pytest.approx(0.75)
    assert found[3].item() == pytest.approx(1.0)
    predicted[3] += 100.0
    torch.testing.assert_close(lddt_per_residue(predicted, true, mask), found)


def test_samples_of_a_batch_are_independent(make_truth: Any) -> None:
    pairs = [_pair(make_truth, noise) for noise in (0.5, 2.0)]
    predicted, true = (torch.cat(x) for x in zip(*pairs, strict=True))
    found = lddt(predicted, true, torch.ones(2, 58))
    expected = [lddt(p, t, torch.ones(1, 58))[0] for p, t in pairs]
    torch.testing.assert_close(found, torch.stack(expected))
    assert found[0] > found[1]
