"""Choice of the naming of ambiguous atoms."""

from __future__ import annotations

from typing import Any

import torch

from scalefold.loss.renaming import rename_ground_truth


def test_truth_as_prediction_keeps_its_names(make_truth: Any) -> None:
    features = make_truth(0, 58)
    renamed = rename_ground_truth(features["atom14_gt_positions"], features)
    assert not renamed.is_swapped.any()
    assert torch.equal(renamed.positions, features["atom14_gt_positions"])


def test_swapped_prediction_swaps_atoms_mask_and_frames_of_its_residues_only(
    make_truth: Any,
) -> None:
    features = make_truth(0, 58)
    ambiguous = (features["atom14_atom_is_ambiguous"] > 0).any(-1)
    # one atom of a swapped pair is unobserved: it counts for neither naming, its partner does
    swapped = ambiguous & (torch.arange(58) % 3 == 0)
    assert 2 <= swapped.sum() < ambiguous.sum()
    predicted = torch.where(
        swapped[..., None, None],
        features["atom14_alt_gt_positions"],
        features["atom14_gt_positions"],
    )
    renamed = rename_ground_truth(predicted, features)
    assert torch.equal(renamed.is_swapped, swapped)
    assert torch.equal(renamed.positions, predicted)
    for name, frames in (("gt", ~swapped), ("alt_gt", swapped)):
        matrix = features[f"rigidgroups_{name}_frames"]
        assert torch.equal(renamed.frames.rotation[frames], matrix[frames][..., :3, :3])
        assert torch.equal(renamed.frames.translation[frames], matrix[frames][..., :3, 3])
    differ = features["rigidgroups_gt_frames"] != features["rigidgroups_alt_gt_frames"]
    assert differ.flatten(-2).any(-1)[swapped].any()


def test_mask_follows_the_names(make_truth: Any) -> None:
    features = make_truth(0, 16)
    tyrosine = 9  # R P D F C L E P P Y
    slots = features["atom14_atom_is_ambiguous"][0, tyrosine].nonzero()[:, 0]
    features["atom14_gt_exists"] = features["atom14_gt_exists"].clone()
    features["atom14_alt_gt_exists"] = features["atom14_alt_gt_exists"].clone()
    features["atom14_gt_exists"][0, tyrosine, slots[0]] = 0.0
    features["atom14_alt_gt_exists"][0, tyrosine, slots[1]] = 0.0
    renamed = rename_ground_truth(features["atom14_alt_gt_positions"], features)
    assert renamed.is_swapped[0, tyrosine]
    assert torch.equal(renamed.exists[0, tyrosine], features["atom14_alt_gt_exists"][0, tyrosine])
    assert torch.equal(renamed.exists[0, 0], features["atom14_gt_exists"][0, 0])


def test_choice_is_the_better_fit_of_distances_by_brute_force(
    make_truth: Any, noisy_outputs: Any
) -> None:
    features = make_truth(0, 20)
    predicted = noisy_outputs(features).structure.positions[-1]
    found = rename_ground_truth(predicted, features).is_swapped[0]
    exists = features["atom14_gt_exists"][0]
    ambiguous = features["atom14_atom_is_ambiguous"][0]
    certain = (exists * (1 - ambiguous)).bool()
    for residue in range(20):
        rows = (exists * ambiguous)[residue].bool()
        cost = [
            (
                torch.cdist(predicted[0, residue, rows], predicted[0][certain])
                - torch.cdist(truth[0, residue, rows], truth[0][certain])
            )
            .abs()
            .sum()
            for truth in (features["atom14_gt_positions"], features["atom14_alt_gt_positions"])
        ]
        assert found[residue].item() == (cost[1] < cost[0]).item()
    assert found.any()


def test_choice_carries_no_gradient(make_truth: Any) -> None:
    features = make_truth(0, 8)
    predicted = features["atom14_alt_gt_positions"].clone().requires_grad_()
    renamed = rename_ground_truth(predicted, features)
    assert not any(x.requires_grad for x in (renamed.positions, renamed.exists, *renamed.frames))
