"""Losses of the heads: distogram, masked MSA, pLDDT, experimentally resolved, aligned error."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from scalefold.geometry.rigid import Rigid
from scalefold.loss.cross_entropy import bin_squared_distance, softmax_cross_entropy
from scalefold.loss.distogram import distogram_loss
from scalefold.loss.experimentally_resolved import experimentally_resolved_loss
from scalefold.loss.masked_msa import masked_msa_loss
from scalefold.loss.pae import pae_loss
from scalefold.loss.plddt import plddt_loss


def _certain(bins: Tensor, num_bins: int) -> Tensor:
    """Logits that are sure of the given bins."""
    return 60.0 * torch.nn.functional.one_hot(bins, num_bins).double()


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_cross_entropy_by_hand() -> None:
    logits, target = _random(2, 3, 5), torch.tensor([[0, 4, 2], [1, 1, 3]])
    expected = -torch.log_softmax(logits, -1).gather(-1, target[..., None])[..., 0]
    torch.testing.assert_close(softmax_cross_entropy(logits, target), expected)


def test_bins_are_open_at_both_ends_and_a_break_belongs_below() -> None:
    distance = torch.tensor([0.0, 2.3125, 2.3126, 2.625, 21.6875, 21.7, 500.0]).double()
    found = bin_squared_distance(distance**2, 2.3125, 21.6875, 64)
    assert found.tolist() == [0, 0, 1, 1, 62, 63, 63]


def test_distogram_knows_the_bins(make_truth: Any) -> None:
    features = make_truth(0, 12)
    beta, mask = features["pseudo_beta"], features["pseudo_beta_mask"]
    distance = torch.cdist(beta, beta)
    # 64 bins of 0.3125 Å, the first up to 2.3125
    bins = torch.ceil((distance - 2.3125) / 0.3125).clamp(0, 63).long()
    assert distogram_loss(_certain(bins, 64), beta, mask).item() < 1e-12
    wrong = _certain((bins + 1) % 64, 64)
    assert distogram_loss(wrong, beta, mask).item() == pytest.approx(60.0, rel=1e-6)
    flat = distogram_loss(torch.zeros(1, 12, 12, 64).double(), beta, mask)
    assert flat.item() == pytest.approx(math.log(64), rel=1e-6)


def test_distogram_leaves_out_unobserved_residues(make_truth: Any) -> None:
    features = make_truth(0, 12)
    mask = features["pseudo_beta_mask"].clone()
    mask[0, 3] = 0.0
    logits = _random(1, 12, 12, 64)
    kept = [i for i in range(12) if i != 3]
    expected = distogram_loss(
        logits[:, kept][:, :, kept], features["pseudo_beta"][:, kept], mask[:, kept]
    )
    found = distogram_loss(logits, features["pseudo_beta"], mask)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_masked_msa_counts_masked_positions_only() -> None:
    logits, true = _random(2, 4, 5, 23), torch.randint(0, 22, (2, 4, 5))
    mask = torch.zeros(2, 4, 5)
    mask[0, 0, 1] = mask[0, 3, 2] = mask[1, 2, 2] = 1.0
    found = masked_msa_loss(logits, true, mask)
    log_p = torch.log_softmax(logits, -1)
    first = -(log_p[0, 0, 1, true[0, 0, 1]] + log_p[0, 3, 2, true[0, 3, 2]]) / 2
    second = -log_p[1, 2, 2, true[1, 2, 2]]
    torch.testing.assert_close(found, torch.stack([first, second]), rtol=1e-7, atol=0)


def test_experimentally_resolved_by_hand(make_truth: Any) -> None:
    exists = make_truth(0, 6)["atom37_atom_exists"]
    resolved = exists.clone()
    resolved[0, 2, 1:] = 0.0
    logits = _random(1, 6, 37)
    p = torch.sigmoid(logits)
    error = -(resolved * p.log() + (1 - resolved) * (1 - p).log())
    expected = (error * exists).sum() / exists.sum()
    found = experimentally_resolved_loss(logits, resolved, exists)
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)


def test_terminal_oxygen_is_no_atom_of_the_type(make_truth: Any) -> None:
    exists = make_truth(0, 4)["atom37_atom_exists"]
    resolved = exists.clone()
    resolved[0, 3, 36] = 1.0  # OXT is observed, and left out
    logits = _random(1, 4, 37)
    assert torch.equal(
        experimentally_resolved_loss(logits, resolved, exists),
        experimentally_resolved_loss(logits, exists, exists),
    )


def test_plddt_of_perfect_and_of_hopeless_prediction(make_truth: Any) -> None:
    ca = make_truth(0, 12)["all_atom_positions"][:, :, 1]
    mask = torch.ones(1, 12).double()
    top = _certain(torch.full((1, 12), 49), 50)
    bottom = _certain(torch.zeros(1, 12, dtype=torch.long), 50)
    assert plddt_loss(top, ca, ca, mask).item() < 1e-12
    assert plddt_loss(bottom, 10 * ca, ca, mask).item() < 1e-12
    assert plddt_loss(bottom, ca, ca, mask).item() == pytest.approx(60.0, rel=1e-6)


def test_plddt_gives_the_structure_no_gradient(make_truth: Any) -> None:
    ca = make_truth(0, 12)["all_atom_positions"][:, :, 1]
    predicted = (ca + _random(1, 12, 3)).requires_grad_()
    logits = _random(1, 12, 50).requires_grad_()
    plddt_loss(logits, predicted, ca, torch.ones(1, 12).double()).sum().backward()
    assert predicted.grad is None
    assert logits.grad.abs().max() > 0


def test_aligned_error_has_the_frame_first_and_the_residue_second() -> None:
    true = Rigid.identity((1, 4), torch.zeros(1).double())
    true = Rigid(true.rotation, 5.0 * _random(1, 4, 3))
    # one frame is turned about its own origin: it sees all others wrong, they see it right
    rotation = true.rotation.clone()
    rotation[0, 2] = torch.diag(torch.tensor([-1.0, -1.0, 1.0]))
    predicted = Rigid(rotation, true.translation)
    error = torch.zeros(1, 4, 4)
    offset = true.translation[0] - true.translation[0, 2]
    error[0, 2] = 2 * offset[:, :2].norm(dim=-1)
    bins = torch.ceil(error / 0.5).clamp(max=63).long()  # breaks 0, 0.5, ... 31
    assert (bins[0, 2, [0, 1, 3]] > 1).all()
    mask = torch.ones(1, 4).double()
    assert pae_loss(_certain(bins, 64), predicted, true, mask).item() < 1e-12
    transposed = _certain(bins.transpose(1, 2), 64)
    assert pae_loss(transposed, predicted, true, mask).item() > 10.0


def test_aligned_error_gives_the_structure_no_gradient(make_truth: Any, noisy_outputs: Any) -> None:
    features = make_truth(0, 6)
    backbone = noisy_outputs(features).structure.backbone
    translation = backbone.translation[-1].clone().requires_grad_()
    logits = _random(1, 6, 6, 64).requires_grad_()
    loss = pae_loss(
        logits,
        Rigid(backbone.rotation[-1], translation),
        Rigid.from_4x4(features["backbone_rigid_tensor"]),
        features["backbone_rigid_mask"],
    )
    loss.sum().backward()
    assert translation.grad is None
    assert logits.grad.abs().max() > 0


def test_gradients_by_logits(make_truth: Any) -> None:
    features = make_truth(0, 3)
    beta, mask = features["pseudo_beta"], torch.tensor([[1.0, 0.0, 1.0]]).double()
    assert torch.autograd.gradcheck(
        lambda x: distogram_loss(x, beta, mask), _random(1, 3, 3, 8).requires_grad_()
    )
    assert torch.autograd.gradcheck(
        lambda x: experimentally_resolved_loss(
            x, features["all_atom_mask"], features["atom37_atom_exists"]
        ),
        _random(1, 3, 37).requires_grad_(),
    )
