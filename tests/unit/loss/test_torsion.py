"""Torsion angle loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from scalefold.loss.torsion import torsion_loss


def _sin_cos(angle: Tensor) -> Tensor:
    return torch.stack([angle.sin(), angle.cos()], -1)


def _angles(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return math.pi * (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1)


def test_error_is_the_squared_chord() -> None:
    true, off = _angles(0, 1, 3, 4), 0.4
    predicted = _sin_cos(torch.cat([_angles(1, 1, 3, 3), true + off], -1)).expand(2, 1, 3, 7, 2)
    ones, zeros = torch.ones(1, 3, 4), torch.zeros(1, 3, 4)
    found = torsion_loss(predicted, predicted, _sin_cos(true), ones, zeros, torch.ones(1, 3))
    # chord 2 sin(off / 2); eps 1e-6 under the root of the length leaves 0.01 x 5e-7
    expected = 0.5 * (2 * math.sin(off / 2)) ** 2 + 0.01 * (math.sqrt(1 + 1e-6) - 1)
    assert found.item() == pytest.approx(expected, rel=1e-9)


def test_half_turn_costs_nothing_only_where_periodic() -> None:
    true = _angles(2, 1, 2, 4)
    turned = _sin_cos(torch.cat([_angles(3, 1, 2, 3), true + math.pi], -1))[None]
    periodic = torch.zeros(1, 2, 4)
    periodic[0, 0, 1] = 1.0
    mask = torch.zeros(1, 2, 4)
    mask[0, 0, 1] = 1.0
    seq = torch.zeros(1, 2)
    assert torsion_loss(turned, turned, _sin_cos(true), mask, periodic, seq).item() < 1e-20
    full = torsion_loss(turned, turned, _sin_cos(true), mask, torch.zeros(1, 2, 4), seq)
    assert full.item() == pytest.approx(0.5 * 4.0, rel=1e-9)


def test_backbone_torsions_are_not_supervised_but_their_length_is() -> None:
    true = _sin_cos(_angles(4, 1, 2, 4))
    one = torch.cat([_sin_cos(_angles(5, 1, 2, 3)), true], -2)[None]
    other = torch.cat([_sin_cos(_angles(6, 1, 2, 3)), true], -2)[None]
    rest = (true, torch.ones(1, 2, 4), torch.zeros(1, 2, 4), torch.ones(1, 2))
    torch.testing.assert_close(torsion_loss(one, one, *rest), torsion_loss(other, other, *rest))
    longer = one.clone()
    longer[..., 0, :] *= 3.0  # omega
    grown = torsion_loss(one, longer, *rest) - torsion_loss(one, one, *rest)
    assert grown.item() == pytest.approx(0.01 * 2.0 / 7, rel=1e-5)


def test_layers_and_residues_count_alike(make_truth: Any) -> None:
    features = make_truth(0, 10)
    raw = torch.randn(3, 1, 10, 7, 2, dtype=torch.float64, generator=torch.manual_seed(0))
    unit = raw / raw.norm(dim=-1, keepdim=True)

    def run(layers: slice) -> Tensor:
        return torsion_loss(
            unit[layers],
            raw[layers],
            features["chi_angles_sin_cos"],
            features["chi_mask"],
            features["rigidgroups_group_is_ambiguous"][..., 4:],
            features["seq_mask"],
        )

    layers = [run(slice(i, i + 1)) for i in range(3)]
    torch.testing.assert_close(run(slice(0, 3)), torch.stack(layers).mean(0))


def test_periodic_angles_are_those_of_asp_glu_phe_tyr(make_truth: Any) -> None:
    features = make_truth(0, 58)
    periodic = features["rigidgroups_group_is_ambiguous"][0, :, 4:]
    letters = "ARNDCQEGHILKMFPSTWYVX"
    found = {
        (letters[aatype], int(chi))
        for aatype, row in zip(features["aatype"][0].tolist(), periodic, strict=True)
        for chi in row.nonzero()
    }
    assert found == {("D", 1), ("E", 2), ("F", 1), ("Y", 1)}


def test_perfect_prediction_costs_nothing(make_truth: Any, perfect_outputs: Any) -> None:
    features = make_truth(0, 58)
    structure = perfect_outputs(features).structure
    found = torsion_loss(
        structure.angles,
        structure.unnormalized_angles,
        features["chi_angles_sin_cos"],
        features["chi_mask"],
        features["rigidgroups_group_is_ambiguous"][..., 4:],
        features["seq_mask"],
    )
    # float32 targets are of unit length to 6e-8; eps under the root adds 5e-7; both times 0.01
    assert found.item() < 1e-8


def test_gradients_also_at_zero_length() -> None:
    raw = torch.randn(2, 1, 2, 7, 2, dtype=torch.float64, generator=torch.manual_seed(1))
    true, mask = _sin_cos(_angles(7, 1, 2, 4)), torch.ones(1, 2, 4)
    periodic = torch.zeros(1, 2, 4)
    assert torch.autograd.gradcheck(
        lambda a, b: torsion_loss(a, b, true, mask, periodic, torch.ones(1, 2)),
        (raw.clone().requires_grad_(), (2 * raw).requires_grad_()),
    )
    zero = torch.zeros_like(raw).requires_grad_()
    torsion_loss(raw, zero, true, mask, periodic, torch.ones(1, 2)).sum().backward()
    assert torch.isfinite(zero.grad).all()
