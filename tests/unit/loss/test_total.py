"""The weighted sum, and properties that all terms share."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from scalefold.config.load import preset_tree
from scalefold.config.schema import LossConfig
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.geometry.rigid import Rigid, quaternion_to_rotation
from scalefold.loss.total import TERMS, total_loss
from scalefold.model.contract import Outputs

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def _motion() -> Rigid:
    quaternion = torch.tensor([0.3, -1.2, 0.5, 0.9], dtype=torch.float64)
    return Rigid(
        quaternion_to_rotation(quaternion / quaternion.norm()),
        torch.tensor([12.0, -31.0, 7.0], dtype=torch.float64),
    )


def _moved_prediction(outputs: Outputs, motion: Rigid) -> Outputs:
    structure = outputs.structure
    return outputs._replace(
        positions=motion.apply(outputs.positions),
        structure=structure._replace(
            backbone=motion.compose(structure.backbone),
            sidechain=motion.compose(structure.sidechain),
            positions=motion.apply(structure.positions),
        ),
    )


def _moved_truth(features: Features, motion: Rigid) -> Features:
    moved = dict(features)
    for name in ("all_atom_positions", "atom14_gt_positions", "atom14_alt_gt_positions",
                 "pseudo_beta"):  # fmt: skip
        moved[name] = motion.apply(features[name])
    for name in ("rigidgroups_gt_frames", "rigidgroups_alt_gt_frames", "backbone_rigid_tensor"):
        moved[name] = motion.compose(Rigid.from_4x4(features[name])).to_4x4()
    return moved


def _other_naming(features: Features) -> Features:
    """The same truth, all ambiguous groups named the other way."""
    periodic = features["rigidgroups_group_is_ambiguous"][..., 4:, None]
    return features | {
        "atom14_gt_positions": features["atom14_alt_gt_positions"],
        "atom14_alt_gt_positions": features["atom14_gt_positions"],
        "atom14_gt_exists": features["atom14_alt_gt_exists"],
        "atom14_alt_gt_exists": features["atom14_gt_exists"],
        "rigidgroups_gt_frames": features["rigidgroups_alt_gt_frames"],
        "rigidgroups_alt_gt_frames": features["rigidgroups_gt_frames"],
        "chi_angles_sin_cos": features["chi_angles_sin_cos"] * (1.0 - 2.0 * periodic),
    }


def _assert_same(a: tuple[Tensor, dict[str, Tensor]], b: tuple[Tensor, dict[str, Tensor]],
                 tolerance: float = 1e-10) -> None:  # fmt: skip
    assert set(a[1]) == set(b[1]) == set(TERMS)
    for name in TERMS:
        assert a[1][name].item() == pytest.approx(b[1][name].item(), rel=tolerance), name
        assert a[1][name].item() > 1e-3, name
    assert a[0].item() == pytest.approx(b[0].item(), rel=tolerance)


def test_moving_the_prediction_or_the_truth_changes_nothing(
    make_truth: Any, noisy_outputs: Any, all_terms: LossConfig
) -> None:
    features, motion = make_truth(), _motion()
    outputs = noisy_outputs(features)
    still = total_loss(outputs, features, all_terms)
    _assert_same(still, total_loss(_moved_prediction(outputs, motion), features, all_terms))
    _assert_same(still, total_loss(outputs, _moved_truth(features, motion), all_terms))


def test_naming_of_ambiguous_atoms_changes_nothing(
    make_truth: Any, noisy_outputs: Any, all_terms: LossConfig
) -> None:
    features = make_truth()
    assert features["atom14_atom_is_ambiguous"].sum() > 8
    outputs = noisy_outputs(features)
    _assert_same(
        total_loss(outputs, features, all_terms),
        total_loss(outputs, _other_naming(features), all_terms),
    )


def test_padded_residues_change_nothing(
    make_truth: Any, noisy_outputs: Any, pad: Any, all_terms: LossConfig
) -> None:
    features = make_truth() | {"seq_length": torch.tensor([16])}
    outputs = noisy_outputs(features)
    padded_features, padded_outputs = pad(features, outputs, 5)
    assert padded_features["aatype"].shape == (1, 21)
    _assert_same(
        total_loss(outputs, features, all_terms),
        total_loss(padded_outputs, padded_features, all_terms),
    )


def test_batch_is_the_mean_of_its_samples_also_in_gradients(
    make_truth: Any, noisy_outputs: Any, pad: Any, join: Any, all_terms: LossConfig
) -> None:
    first = make_truth(0, 16) | {"use_clamped_fape": torch.zeros(1, dtype=torch.float64)}
    # of another length, and not judged by resolution
    second = make_truth(30, 40) | {
        "seq_length": torch.tensor([10]),
        "resolution": torch.zeros(1, dtype=torch.float64),
    }
    samples = [
        (first, noisy_outputs(first, 1)),
        pad(second, noisy_outputs(second, 2), 6),
    ]

    def run(features: Features, outputs: Outputs) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        translation = outputs.structure.backbone.translation.clone().requires_grad_()
        backbone = Rigid(outputs.structure.backbone.rotation, translation)
        outputs = outputs._replace(structure=outputs.structure._replace(backbone=backbone))
        loss, terms = total_loss(outputs, features, all_terms)
        return loss, terms, torch.autograd.grad(loss, translation)[0]

    singles = [run(*sample) for sample in samples]
    loss, terms, gradient = run(*join(samples))
    torch.testing.assert_close(loss, (singles[0][0] + singles[1][0]) / 2, **EXACT)
    for name in TERMS:
        torch.testing.assert_close(
            terms[name], (singles[0][1][name] + singles[1][1][name]) / 2, **EXACT
        )
    torch.testing.assert_close(gradient, torch.cat([singles[0][2], singles[1][2]], 1) / 2, **EXACT)


def test_sum_is_weighted_and_scaled_by_the_root_of_the_cropped_length(
    make_truth: Any, noisy_outputs: Any, all_terms: LossConfig
) -> None:
    features = make_truth(0, 16)
    outputs = noisy_outputs(features)
    for length, counted in ((58, 16), (9, 9)):
        given = features | {"seq_length": torch.tensor([length])}
        loss, terms = total_loss(outputs, given, all_terms)
        weighted = sum(getattr(all_terms, name) * terms[name].item() for name in TERMS)
        assert loss.item() == pytest.approx(weighted * math.sqrt(counted), rel=1e-12)


def test_weights_of_the_presets_are_those_of_the_paper() -> None:
    initial = LossConfig(**preset_tree("initial_training").get("loss", {}))
    assert (initial.fape, initial.chi, initial.distogram) == (1.0, 1.0, 0.3)
    assert (initial.masked_msa, initial.plddt, initial.fape_backbone_share) == (2.0, 0.01, 0.5)
    assert initial.experimentally_resolved == initial.violation == initial.pae == 0.0
    finetuning = LossConfig(**preset_tree("finetuning")["loss"])
    assert (finetuning.violation, finetuning.experimentally_resolved) == (1.0, 0.01)
    assert preset_tree("model_1_ptm")["loss"]["pae"] == 0.1


@pytest.mark.parametrize("name", list(TERMS))
def test_term_of_weight_zero_is_not_computed(
    make_truth: Any, noisy_outputs: Any, all_terms: LossConfig, name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(*_: object) -> Tensor:
        raise AssertionError("computed")

    monkeypatch.setitem(TERMS, name, fail)
    features = make_truth(0, 6)
    outputs = noisy_outputs(features)
    _, terms = total_loss(outputs, features, all_terms.model_copy(update={name: 0.0}))
    assert set(terms) == set(TERMS) - {name}
    with pytest.raises(AssertionError, match="computed"):
        total_loss(outputs, features, all_terms)


@pytest.mark.parametrize(
    ("resolution", "counts"),
    [(0.0, False), (0.09, False), (0.1, True), (2.0, True), (3.0, True), (3.01, False)],
)
def test_confidence_terms_need_a_known_good_resolution(
    make_truth: Any, noisy_outputs: Any, all_terms: LossConfig, resolution: float, counts: bool
) -> None:
    features = make_truth(0, 8)
    features["resolution"] = torch.tensor([resolution])  # float32, as in the contract
    _, terms = total_loss(noisy_outputs(features), features, all_terms)
    for name in ("plddt", "experimentally_resolved", "pae"):
        assert (terms[name].item() > 0) == counts, name
    for name in ("fape", "chi", "distogram", "masked_msa", "violation"):
        assert terms[name].item() > 0, name


def test_terms_are_detached_and_share_the_device(
    make_truth: Any, noisy_outputs: Any, all_terms: LossConfig
) -> None:
    features = make_truth(0, 6)
    outputs = noisy_outputs(features)
    outputs.distogram_logits.requires_grad_()
    loss, terms = total_loss(outputs, features, all_terms)
    assert loss.requires_grad
    assert all(t.shape == () and not t.requires_grad for t in terms.values())


def test_half_precision_logits_and_autocast_do_not_lower_precision(
    make_truth: Any, noisy_outputs: Any, all_terms: LossConfig
) -> None:
    features = {k: v.float() if v.is_floating_point() else v for k, v in make_truth(0, 12).items()}
    outputs = noisy_outputs(make_truth(0, 12))
    heads = [name for name in Outputs._fields if name.endswith("_logits")]
    structure = outputs.structure
    single = outputs._replace(
        structure=structure._replace(
            backbone=structure.backbone.to(torch.float32),
            sidechain=structure.sidechain.to(torch.float32),
            **{n: getattr(structure, n).float() for n in ("angles", "unnormalized_angles",
                                                          "positions")},
        ),
        positions=outputs.positions.float(),
        **{name: getattr(outputs, name).bfloat16() for name in heads},
    )  # fmt: skip
    raised = single._replace(**{name: getattr(single, name).float() for name in heads})
    expected = total_loss(raised, features, all_terms)[0]
    assert expected.dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = total_loss(single, features, all_terms)[0]
    assert found.dtype == torch.float64
    assert torch.equal(found, expected)


def test_nothing_observed_gives_zero_and_no_nan(
    make_truth: Any, noisy_outputs: Any, all_terms: LossConfig
) -> None:
    features = make_truth(0, 8)
    masks = ("mask", "exists")
    features = {
        name: torch.zeros_like(value) if name.endswith(masks) else value
        for name, value in features.items()
    }
    outputs = noisy_outputs(features)
    leaves = [
        outputs.structure.positions.requires_grad_(),
        outputs.structure.backbone.translation.requires_grad_(),
        outputs.structure.unnormalized_angles.requires_grad_(),
        outputs.distogram_logits.requires_grad_(),
        outputs.pae_logits.requires_grad_(),
    ]
    loss, terms = total_loss(outputs, features, all_terms)
    assert loss.item() == 0.0
    assert all(t.item() == 0.0 for t in terms.values())
    for gradient in torch.autograd.grad(loss, leaves):
        assert gradient.abs().max().item() == 0.0


def test_black_hole_prediction_has_finite_gradients(
    make_truth: Any, noisy_outputs: Any, all_terms: LossConfig
) -> None:
    """At the start of training every atom lies at the origin and angles may be (0, 0)."""
    features = make_truth(0, 8)
    outputs = noisy_outputs(features)
    structure = outputs.structure
    identity = [
        Rigid.identity(tuple(r.translation.shape[:-1]), structure.angles)
        for r in (structure.backbone, structure.sidechain)
    ]
    leaves = [
        torch.zeros_like(structure.positions).requires_grad_(),
        identity[0].translation.requires_grad_(),
        identity[1].translation.requires_grad_(),
        torch.zeros_like(structure.unnormalized_angles).requires_grad_(),
    ]
    outputs = outputs._replace(
        structure=structure._replace(
            positions=leaves[0], backbone=identity[0], sidechain=identity[1],
            unnormalized_angles=leaves[3],
        )
    )  # fmt: skip
    loss, _ = total_loss(outputs, features, all_terms)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, leaves))


def test_float32_agrees_with_float64(
    make_truth: Any, noisy_outputs: Any, all_terms: LossConfig
) -> None:
    features = make_truth(0, 12)
    outputs = noisy_outputs(features)

    def single(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.float()
        return type(value)(*(single(v) for v in value))

    found, terms = total_loss(
        single(outputs),
        {k: v.float() if v.is_floating_point() else v for k, v in features.items()},
        all_terms,
    )
    expected, expected_terms = total_loss(outputs, features, all_terms)
    # some 1e5 float32 roundings of 6e-8, of random sign, in sums of positive numbers
    assert found.item() == pytest.approx(expected.item(), rel=5e-6)
    for name in TERMS:
        assert terms[name].item() == pytest.approx(expected_terms[name].item(), rel=5e-6), name


def test_worse_predictions_cost_more(
    make_truth: Any, perfect_outputs: Any, noisy_outputs: Any, all_terms: LossConfig
) -> None:
    features = make_truth()
    perfect, noisy = perfect_outputs(features), noisy_outputs(features)

    def mixed(share: float) -> Outputs:
        p, n = perfect.structure, noisy.structure
        return perfect._replace(
            structure=p._replace(
                backbone=p.backbone._replace(
                    translation=torch.lerp(p.backbone.translation, n.backbone.translation, share)
                ),
                positions=torch.lerp(p.positions, n.positions, share),
            )
        )

    costs: list[dict[str, Tensor]] = [
        total_loss(mixed(share), features, all_terms)[1] for share in (0.0, 0.25, 0.5, 1.0)
    ]
    for name in ("fape", "violation"):
        assert all(a[name] < b[name] for a, b in pairwise(costs)), name


def test_no_value_is_read_on_the_host(
    make_truth: Any, noisy_outputs: Any, all_terms: LossConfig
) -> None:
    """With tensors that have no data, anything that depends on values fails."""
    features = make_truth(0, 8)
    outputs = noisy_outputs(features)
    total_loss(outputs, features, all_terms)  # tables are on the device from the first call on
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def fake(value: Any) -> Any:
            if isinstance(value, Tensor):
                return mode.from_tensor(value)
            return type(value)(*(fake(v) for v in value))

        loss, terms = total_loss(
            fake(outputs), {k: fake(v) for k, v in features.items()}, all_terms
        )
    assert loss.shape == ()
    assert set(terms) == set(TERMS)


def test_all_weights_zero_is_an_error(make_truth: Any, noisy_outputs: Any) -> None:
    features = make_truth(0, 4)
    config = LossConfig(**dict.fromkeys(TERMS, 0.0))
    with pytest.raises(InputError, match="weights"):
        total_loss(noisy_outputs(features), features, config)


def test_missing_head_is_named(
    make_truth: Any, noisy_outputs: Callable[..., Outputs], all_terms: LossConfig
) -> None:
    features = make_truth(0, 4)
    outputs = noisy_outputs(features)._replace(pae_logits=None)
    with pytest.raises(InputError, match=r"model\.pae_head"):
        total_loss(outputs, features, all_terms)
