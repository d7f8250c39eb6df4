import numpy as np
import pytest
import torch

from scalefold.chem.residues import ATOM14, ATOM14_LOCAL_POSITION, ATOM14_RIGID_GROUP, ATOM37_INDEX
from scalefold.features.rigid_groups import rigid_group_targets


@pytest.fixture(scope="module")
def targets(tensors):
    return rigid_group_targets(*tensors)


def test_frames_are_rotations(targets):
    exists = targets["rigidgroups_gt_exists"] == 1
    for name in ("rigidgroups_gt_frames", "rigidgroups_alt_gt_frames"):
        rotation = targets[name][exists][:, :3, :3].double()
        identity = torch.eye(3, dtype=torch.float64).expand_as(rotation)
        torch.testing.assert_close(
            rotation @ rotation.transpose(-1, -2), identity, atol=1e-6, rtol=0
        )
        torch.testing.assert_close(
            torch.linalg.det(rotation), torch.ones(len(rotation)).double(), atol=1e-6, rtol=0
        )


def test_ideal_atoms_land_on_the_real_ones(tensors, targets):
    """Independent of how frames are built: tabulated local positions, put through the frames."""
    aatype, positions, mask = tensors
    distances = []
    for n, residue in enumerate(aatype):
        for slot, name in enumerate(ATOM14[residue]):
            group = ATOM14_RIGID_GROUP[residue, slot]
            atom = ATOM37_INDEX[name]
            if not mask[n, atom] or not targets["rigidgroups_gt_exists"][n, group]:
                continue
            frame = targets["rigidgroups_gt_frames"][n, group]
            local = torch.from_numpy(ATOM14_LOCAL_POSITION[residue, slot])
            placed = frame[:3, :3] @ local + frame[:3, 3]
            distances.append(float((placed - positions[n, atom]).norm()))
    assert len(distances) > 400
    # Bond lengths and angles of a crystal structure of 1984 differ from the ideal ones by a few
    # hundredths of an Å and a few degrees; Arg 17 of this one is bent. A wrong frame would put
    # whole groups more than 1 Å off.
    assert np.mean(distances) < 0.1
    assert np.quantile(distances, 0.99) < 0.5


def test_backbone_frame(tensors, targets):
    _, positions, _ = tensors
    frame = targets["backbone_rigid_tensor"]
    n, ca, c = (positions[:, ATOM37_INDEX[a]] for a in ("N", "CA", "C"))
    local_c = torch.einsum("nij,ni->nj", frame[:, :3, :3], c - ca)
    local_n = torch.einsum("nij,ni->nj", frame[:, :3, :3], n - ca)
    assert torch.equal(frame[:, :3, 3], ca)
    assert (local_c[:, 0] > 1.4).all()
    assert local_c[:, 1:].abs().max() < 1e-5
    assert (local_n[:, 1] > 1.0).all()
    assert local_n[:, 2].abs().max() < 1e-5


def test_alternative_frames_turn_half_about_x(targets):
    frames = targets["rigidgroups_gt_frames"][..., :3, :3]
    other = targets["rigidgroups_alt_gt_frames"][..., :3, :3]
    ambiguous = targets["rigidgroups_group_is_ambiguous"] == 1
    assert ambiguous.any()
    assert torch.equal(frames[~ambiguous], other[~ambiguous])
    assert torch.equal(frames[ambiguous][..., 0], other[ambiguous][..., 0])
    assert torch.equal(frames[ambiguous][..., 1:], -other[ambiguous][..., 1:])


def test_a_missing_atom_takes_its_groups_away(tensors):
    aatype, positions, mask = tensors
    mask = mask.clone()
    mask[5, ATOM37_INDEX["CA"]] = 0
    mask[6, ATOM37_INDEX["O"]] = 0
    targets = rigid_group_targets(aatype, positions, mask)
    assert targets["backbone_rigid_mask"][5] == 0
    assert targets["backbone_rigid_mask"][6] == 1
    assert targets["rigidgroups_gt_exists"][6, 3] == 0
    assert targets["backbone_rigid_mask"].sum() == len(aatype) - 1


def test_unknown_residue_has_a_backbone(tensors):
    _, positions, mask = tensors
    targets = rigid_group_targets(torch.full((len(mask),), 20), positions, mask)
    assert (targets["backbone_rigid_mask"] == 1).all()
    assert targets["rigidgroups_group_exists"].sum(0).tolist() == [58, 0, 0, 58, 0, 0, 0, 0]


def test_rotating_the_structure_rotates_the_frames(tensors, targets):
    aatype, positions, mask = tensors
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0]
    rotation = rotation * torch.linalg.det(rotation).sign()
    shift = torch.tensor([5.0, -3.0, 20.0])
    moved = rigid_group_targets(aatype, positions @ rotation.T + shift, mask)
    exists = targets["rigidgroups_gt_exists"] == 1
    for name in ("rigidgroups_gt_frames", "rigidgroups_alt_gt_frames"):
        before, after = targets[name][exists], moved[name][exists]
        # moved positions are rounded to float32: 4e-6 Å over bonds of 1.2 Å and more
        torch.testing.assert_close(
            after[:, :3, :3], rotation @ before[:, :3, :3], atol=2e-5, rtol=0
        )
        torch.testing.assert_close(
            after[:, :3, 3], before[:, :3, 3] @ rotation.T + shift, atol=1e-5, rtol=0
        )
    for name in ("rigidgroups_gt_exists", "rigidgroups_group_is_ambiguous"):
        assert torch.equal(targets[name], moved[name])
