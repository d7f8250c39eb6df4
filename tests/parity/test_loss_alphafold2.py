"""All loss terms and their gradients against AlphaFold2's own, float64.

``loss_golden/alphafold2.npz`` was made by ``loss_golden/make.py``, which says how.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from scalefold.geometry.rigid import Rigid
from scalefold.loss.distogram import distogram_loss
from scalefold.loss.experimentally_resolved import experimentally_resolved_loss
from scalefold.loss.fape import backbone_fape, sidechain_fape
from scalefold.loss.lddt import lddt, lddt_per_residue
from scalefold.loss.masked_msa import masked_msa_loss
from scalefold.loss.pae import pae_loss
from scalefold.loss.plddt import plddt_loss
from scalefold.loss.renaming import rename_ground_truth
from scalefold.loss.torsion import torsion_loss
from scalefold.loss.violation import violation_loss

RELATIVE = 1e-9  # of an array's largest entry

Golden = tuple[dict[str, Tensor], dict[str, Tensor]]


@pytest.fixture(scope="module")
def golden() -> Golden:
    inputs: dict[str, Tensor] = {}
    expected: dict[str, Tensor] = {}
    with np.load(Path(__file__).parent / "loss_golden/alphafold2.npz") as stored:
        for key in stored.files:
            kind, _, name = key.partition("/")
            value = torch.from_numpy(stored[key])
            value = value.double() if value.is_floating_point() else value
            (inputs if kind == "input" else expected)[name] = value
    return inputs, expected


def _check(
    golden: Golden,
    name: str,
    term: Callable[..., Tensor],
    arguments: dict[str, Tensor],
) -> None:
    """Compare the term, and its gradients by ``arguments`` (name as in the file -> value)."""
    _, expected = golden
    leaves = {key: value.clone().requires_grad_() for key, value in arguments.items()}
    value = term(**leaves)
    _assert_close(value, expected[name])
    gradients = torch.autograd.grad(value.sum(), list(leaves.values()))
    for key, gradient in zip(leaves, gradients, strict=True):
        reference = expected[f"{name}.d_{key}"]
        if gradient.shape != reference.shape:  # stored as a product, to save room
            bins = torch.arange(gradient.shape[-1], dtype=torch.float64)
            gradient = (gradient * bins.cos()).sum(-1)
        assert torch.isfinite(gradient).all()
        _assert_close(gradient, reference)


def _assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert expected.abs().max() > 0
    tolerance = RELATIVE * expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("kind", "clamped"), [("clamped", 1.0), ("unclamped", 0.0)])
def test_backbone_fape(golden: Golden, kind: str, clamped: float) -> None:
    inputs, expected = golden
    name = f"backbone_fape_{kind}"
    # AlphaFold2's values are a layer each; the term is their mean
    layers = expected[name].shape[0]
    by_sample = {name: expected[name].mean(0)}
    gradients = {k: v / layers for k, v in expected.items() if k.startswith(f"{name}.d_")}

    def term(rotation: Tensor, translation: Tensor) -> Tensor:
        return backbone_fape(
            Rigid(rotation, translation),
            Rigid.from_4x4(inputs["backbone_rigid_tensor"]),
            inputs["backbone_rigid_mask"],
            torch.full((2,), clamped, dtype=torch.float64),
        )

    arguments = {key: inputs[f"backbone.{key}"] for key in ("rotation", "translation")}
    _check((inputs, by_sample | gradients), name, term, arguments)


def test_backbone_fape_mixes_clamped_and_unclamped_by_sample(golden: Golden) -> None:
    inputs, expected = golden
    share = inputs["use_clamped_fape"]
    found = backbone_fape(
        Rigid(inputs["backbone.rotation"], inputs["backbone.translation"]),
        Rigid.from_4x4(inputs["backbone_rigid_tensor"]),
        inputs["backbone_rigid_mask"],
        share,
    )
    clamped, unclamped = (
        expected[f"backbone_fape_{kind}"].mean(0) for kind in ("clamped", "unclamped")
    )
    assert (unclamped > 1.05 * clamped).all()
    _assert_close(found, share * clamped + (1 - share) * unclamped)


def test_renaming_and_sidechain_fape(golden: Golden) -> None:
    inputs, expected = golden
    truth = rename_ground_truth(inputs["positions"][-1], inputs)
    assert truth.is_swapped.any()
    has_two_names = (inputs["atom14_atom_is_ambiguous"] * inputs["atom14_gt_exists"]).any(-1)
    assert (has_two_names & ~truth.is_swapped).any()
    assert torch.equal(truth.is_swapped.double(), expected["is_swapped"])

    def term(rotation: Tensor, translation: Tensor, positions: Tensor) -> Tensor:
        return sidechain_fape(
            Rigid(rotation, translation),
            truth.frames,
            inputs["rigidgroups_gt_exists"],
            positions,
            truth.positions,
            truth.exists,
        )

    arguments = {
        "rotation": inputs["sidechain.rotation"][-1],
        "translation": inputs["sidechain.translation"][-1],
        "positions": inputs["positions"][-1],
    }
    _check(golden, "sidechain_fape", term, arguments)


def test_chi(golden: Golden) -> None:
    inputs, _ = golden

    def term(angles: Tensor, unnormalized_angles: Tensor) -> Tensor:
        return torsion_loss(
            angles,
            unnormalized_angles,
            inputs["chi_angles_sin_cos"],
            inputs["chi_mask"],
            inputs["rigidgroups_group_is_ambiguous"][..., 4:],
            inputs["seq_mask"],
        )

    _check(golden, "chi", term, {k: inputs[k] for k in ("angles", "unnormalized_angles")})


def test_violation(golden: Golden) -> None:
    inputs, _ = golden

    def term(positions: Tensor) -> Tensor:
        return violation_loss(
            positions, inputs["atom14_atom_exists"], inputs["residue_index"], inputs["aatype"]
        )

    _check(golden, "violation", term, {"positions": inputs["positions"][-1]})


@pytest.mark.parametrize(
    "name", ["distogram", "masked_msa", "experimentally_resolved", "plddt", "pae"]
)
def test_heads(golden: Golden, name: str) -> None:
    inputs, _ = golden
    true_ca, ca_mask = inputs["all_atom_positions"][:, :, 1], inputs["all_atom_mask"][:, :, 1]
    terms = {
        "distogram": lambda logits: distogram_loss(
            logits, inputs["pseudo_beta"], inputs["pseudo_beta_mask"]
        ),
        "masked_msa": lambda logits: masked_msa_loss(
            logits, inputs["true_msa"], inputs["bert_mask"]
        ),
        "experimentally_resolved": lambda logits: experimentally_resolved_loss(
            logits, inputs["all_atom_mask"], inputs["atom37_atom_exists"]
        ),
        "plddt": lambda logits: plddt_loss(logits, inputs["predicted_ca"], true_ca, ca_mask),
        "pae": lambda logits: pae_loss(
            logits,
            Rigid(inputs["backbone.rotation"][-1], inputs["backbone.translation"][-1]),
            Rigid.from_4x4(inputs["backbone_rigid_tensor"]),
            inputs["backbone_rigid_mask"],
        ),
    }
    _check(golden, name, terms[name], {"logits": inputs[f"{name}_logits"]})


def test_lddt(golden: Golden) -> None:
    inputs, expected = golden
    arguments = (
        inputs["predicted_ca"],
        inputs["all_atom_positions"][:, :, 1],
        inputs["all_atom_mask"][:, :, 1],
    )
    _assert_close(lddt(*arguments), expected["lddt"])
    _assert_close(lddt_per_residue(*arguments), expected["lddt_per_residue"])
