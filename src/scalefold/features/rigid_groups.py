"""True frames of the rigid groups of each residue (Suppl. sec. 1.8.1, Alg. 21).

Computed in float64: positions far from the origin lose digits in differences of float32 numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from scalefold.chem.rigid_groups import GROUP_ATOMS, GROUP_IS_AMBIGUOUS, GROUP_MASK, NUM_GROUPS
from scalefold.features.constants import on_device, per_residue
from scalefold.features.contract import Features
from scalefold.geometry.rigid import Rigid

# The backbone has C on the positive x axis: half a turn about y.
_BACKWARDS: Final = np.ones((NUM_GROUPS, 3))
_BACKWARDS[0, [0, 2]] = -1.0

# Alternative naming: half a turn about the chi axis, x.
_HALF_TURN: Final = np.array([1.0, -1.0, -1.0])


def rigid_group_targets(aatype: Tensor, positions: Tensor, mask: Tensor) -> Features:
    """Frames of the eight rigid groups under both namings, and the backbone frame.

    Parameters
    ----------
    aatype : Tensor, shape (N,), int64
        0-20.
    positions : Tensor, shape (N, 37, 3)
        Å.
    mask : Tensor, shape (N, 37)
        1 where the atom is observed.

    Returns
    -------
    dict
        ``rigidgroups_*`` and ``backbone_rigid_*`` of the feature contract. A frame has no meaning
        if not all of its atoms are observed; then ``rigidgroups_gt_exists`` is 0.
    """
    atoms = per_residue(GROUP_ATOMS, aatype)
    ambiguous = per_residue(GROUP_IS_AMBIGUOUS, aatype)
    residue = torch.arange(len(aatype), device=aatype.device)[:, None, None]
    exists = mask[residue, atoms].amin(-1) * per_residue(GROUP_MASK, aatype)

    negative_x, origin, xy_plane = positions.double()[residue, atoms].unbind(-2)
    frames = Rigid.from_three_points(negative_x, origin, xy_plane)
    rotation = frames.rotation * on_device(_BACKWARDS, positions.device)[:, None, :]
    turn = torch.where(ambiguous[..., None] > 0, on_device(_HALF_TURN, positions.device), 1.0)

    frames_4x4 = Rigid(rotation, frames.translation).to_4x4().float()
    alternative_4x4 = Rigid(rotation * turn[..., None, :], frames.translation).to_4x4().float()
    return {
        "rigidgroups_gt_frames": frames_4x4,
        "rigidgroups_gt_exists": exists,
        "rigidgroups_group_exists": per_residue(GROUP_MASK, aatype),
        "rigidgroups_group_is_ambiguous": ambiguous,
        "rigidgroups_alt_gt_frames": alternative_4x4,
        "backbone_rigid_tensor": frames_4x4[:, 0],
        "backbone_rigid_mask": exists[:, 0],
    }
