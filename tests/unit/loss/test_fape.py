"""Frame aligned point error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scalefold.chem.rigid_groups import GROUP_ATOMS
from scalefold.config.schema import LossConfig
from scalefold.geometry.rigid import Rigid, quaternion_to_rotation
from scalefold.loss.fape import aligned_distance, backbone_fape, sidechain_fape
from scalefold.loss.lddt import lddt
from scalefold.loss.total import total_loss

FAPE_ONLY = LossConfig(fape=1, chi=0, distogram=0, masked_msa=0, plddt=0)
# sqrt(eps) / 10 Å: what is left of a perfect prediction
FLOOR = math.sqrt(1e-4) / 10.0


def _frames(seed: int, *shape: int, spread: float = 6.0) -> Rigid:
    generator = torch.Generator().manual_seed(seed)
    quaternion = torch.randn(*shape, 4, generator=generator, dtype=torch.float64)
    quaternion = quaternion / quaternion.norm(dim=-1, keepdim=True)
    translation = spread * torch.randn(*shape, 3, generator=generator, dtype=torch.float64)
    return Rigid(quaternion_to_rotation(quaternion), translation)


def _fape_by_hand(
    predicted: Rigid, true: Rigid, frame_mask: Tensor, x: Tensor, y: Tensor, point_mask: Tensor,
    clamp: float,
) -> float:  # fmt: skip
    """Alg. 28 in loops, one sample."""
    total = 0.0
    for f in range(len(frame_mask)):
        for p in range(len(point_mask)):
            inverse = [np.linalg.inv(r.to_4x4()[f].numpy()) for r in (predicted, true)]
            a, b = (m @ np.append(v[p].numpy(), 1.0) for m, v in zip(inverse, (x, y), strict=True))
            distance = min(math.sqrt(((a - b) ** 2).sum() + 1e-4), clamp)
            total += frame_mask[f].item() * point_mask[p].item() * distance / 10.0
    return total / (1e-4 + frame_mask.sum().item() * point_mask.sum().item())


@pytest.mark.parametrize("clamp", [True, False])
def test_backbone_equals_the_algorithm_in_loops(clamp: bool) -> None:
    predicted, true = _frames(0, 2, 1, 6), _frames(1, 1, 6)
    mask = torch.tensor([[1.0, 1, 0, 1, 1, 0]], dtype=torch.float64)
    found = backbone_fape(predicted, true, mask, torch.tensor([float(clamp)]))
    by_layer = [
        _fape_by_hand(
            Rigid(predicted.rotation[layer, 0], predicted.translation[layer, 0]),
            Rigid(true.rotation[0], true.translation[0]),
            mask[0],
            predicted.translation[layer, 0],
            true.translation[0],
            mask[0],
            10.0 if clamp else math.inf,
        )
        for layer in range(2)
    ]
    assert found.item() == pytest.approx(sum(by_layer) / 2, rel=1e-12)


def test_clamping_is_by_sample() -> None:
    predicted, true = _frames(0, 2, 3, 6, spread=20.0), _frames(1, 3, 6, spread=20.0)
    mask = torch.ones(3, 6, dtype=torch.float64)

    def run(*use: float) -> Tensor:
        return backbone_fape(predicted, true, mask, torch.tensor(use, dtype=torch.float64))

    clamped, unclamped = run(1, 1, 1), run(0, 0, 0)
    assert (unclamped > 1.2 * clamped).all()
    assert (clamped <= 1.0).all()
    torch.testing.assert_close(
        run(1, 0, 0.9),
        torch.stack([clamped[0], unclamped[1], 0.9 * clamped[2] + 0.1 * unclamped[2]]),
    )


def test_sidechains_are_always_clamped_and_of_the_last_layer(
    make_truth: Any, noisy_outputs: Any
) -> None:
    features = make_truth(0, 8)
    outputs = noisy_outputs(features)
    config = FAPE_ONLY.model_copy(update={"fape_backbone_share": 0.0})

    def run(use_clamped: float, **changes: Any) -> float:
        given = features | {"use_clamped_fape": torch.tensor([use_clamped])}
        structure = outputs.structure._replace(**changes)
        return total_loss(outputs._replace(structure=structure), given, config)[1]["fape"].item()

    reference = run(1.0)
    assert run(0.0) == reference
    earlier = outputs.structure.positions.clone()
    earlier[0] += 3.0
    assert run(1.0, positions=earlier) == reference
    final = outputs.structure.positions.clone()
    final[-1, 0, 2] += 3.0
    assert run(1.0, positions=final) != reference


def test_backbone_counts_all_layers(make_truth: Any, noisy_outputs: Any) -> None:
    features = make_truth(0, 8)
    backbone = noisy_outputs(features).structure.backbone
    backbone.translation.requires_grad_()
    true = Rigid.from_4x4(features["backbone_rigid_tensor"])
    ones = torch.ones(1, 8, dtype=torch.float64)
    loss = backbone_fape(backbone, true, ones, torch.zeros(1)).sum()
    gradient = torch.autograd.grad(loss, backbone.translation)[0]
    assert (gradient.abs().amax((1, 2, 3)) > 0).all()


def test_halves_are_weighted_by_the_share(make_truth: Any, noisy_outputs: Any) -> None:
    features = make_truth(0, 8)
    outputs = noisy_outputs(features)
    parts = [
        total_loss(outputs, features, FAPE_ONLY.model_copy(update={"fape_backbone_share": share}))[
            1
        ]["fape"]
        for share in (1.0, 0.0, 0.5)
    ]
    torch.testing.assert_close(parts[2], 0.5 * parts[0] + 0.5 * parts[1])


def test_perfect_prediction_leaves_the_root_of_eps(make_truth: Any, perfect_outputs: Any) -> None:
    features = make_truth(0, 58)
    _, terms = total_loss(perfect_outputs(features), features, FAPE_ONLY)
    # the denominator's eps lowers it by 1e-4 over at least 58^2 pairs
    assert terms["fape"].item() == pytest.approx(FLOOR, rel=1e-4 / 58**2)


def test_mirror_image_is_punished_though_all_distances_are_right(
    make_truth: Any, perfect_outputs: Any
) -> None:
    features = make_truth(0, 58)
    mirror = torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)
    positions = features["all_atom_positions"] * mirror
    atoms = torch.from_numpy(GROUP_ATOMS)[features["aatype"]][0]
    residue = torch.arange(58)[:, None, None]
    frames = Rigid.from_three_points(*positions[:, residue, atoms].unbind(-2))
    half_turn = torch.ones(8, 3, dtype=torch.float64)
    half_turn[0] = torch.tensor([-1.0, 1.0, -1.0])
    frames = Rigid(frames.rotation * half_turn[:, None, :], frames.translation)

    perfect = perfect_outputs(features)
    layers = perfect.structure.positions.shape[0]
    outputs = perfect._replace(
        structure=perfect.structure._replace(
            backbone=Rigid(
                frames.rotation[..., 0, :, :].expand(layers, -1, -1, -1, -1),
                frames.translation[..., 0, :].expand(layers, -1, -1, -1),
            ),
            sidechain=Rigid(
                frames.rotation.expand(layers, -1, -1, -1, -1, -1),
                frames.translation.expand(layers, -1, -1, -1, -1),
            ),
            positions=perfect.structure.positions * mirror,
        )
    )
    ca = features["all_atom_positions"][:, :, 1]
    assert lddt(ca * mirror, ca, torch.ones(1, 58)).item() == pytest.approx(1.0, abs=1e-9)
    assert total_loss(outputs, features, FAPE_ONLY)[1]["fape"].item() > 0.3


def test_distance_does_not_depend_on_the_global_frame() -> None:
    predicted, true, motion = _frames(2, 4), _frames(3, 4), _frames(4, 1)
    x, y = _frames(5, 7).translation, _frames(6, 7).translation
    torch.testing.assert_close(
        aligned_distance(motion.compose(predicted), true, motion.apply(x), y),
        aligned_distance(predicted, true, x, y),
        rtol=1e-12,
        atol=1e-12,
    )


def test_gradients() -> None:
    predicted, true = _frames(7, 2, 1, 3, spread=4.0), _frames(8, 1, 3, spread=4.0)
    mask = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    use = torch.tensor([0.5], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda r, t: backbone_fape(Rigid(r, t), true, mask, use),
        tuple(x.requires_grad_() for x in predicted),
    )
    groups, true_groups = _frames(9, 1, 2, 8, spread=3.0), _frames(10, 1, 2, 8, spread=3.0)
    points = torch.randn(2, 1, 2, 14, 3, dtype=torch.float64, generator=torch.manual_seed(0))
    assert torch.autograd.gradcheck(
        lambda r, t, x: sidechain_fape(
            Rigid(r, t), true_groups, torch.ones(1, 2, 8), x, points[1], torch.ones(1, 2, 14)
        ),
        (*(x.requires_grad_() for x in groups), points[0].clone().requires_grad_()),
    )
