"""Features of the chain itself: its sequence, and the structure to be learnt."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.features.atoms import atom14_targets, atom_layout, pseudo_beta
from scalefold.features.contract import Features
from scalefold.features.inputs import FeatureInputs
from scalefold.features.rigid_groups import rigid_group_targets
from scalefold.features.torsions import torsion_angles


def chain_features(inputs: FeatureInputs) -> Features:
    """Sequence features and targets of the window's residues, unbatched."""
    aatype, positions, mask = inputs.chain
    device = aatype.device
    aatype = aatype.long()
    # the first channel marks domain breaks, which single chains do not have
    target_feat = functional.pad(functional.one_hot(aatype, 21).float(), (1, 0))
    return {
        "aatype": aatype,
        "residue_index": torch.arange(inputs.window.start, inputs.window.stop, device=device),
        "seq_mask": torch.ones(inputs.window.size, device=device),
        "target_feat": target_feat,
        "resolution": _number(inputs.resolution, device),
        "seq_length": torch.full((), inputs.num_res, device=device),
        "use_clamped_fape": _number(inputs.clamped, device),
        **structure_targets(aatype, positions, mask.float()),
    }


def structure_targets(aatype: Tensor, positions: Tensor, mask: Tensor) -> Features:
    """The true structure for the losses, and the layout of its atoms; unbatched.

    Parameters
    ----------
    aatype : Tensor, shape (N,), int64
    positions : Tensor, shape (N, 37, 3)
        Å.
    mask : Tensor, shape (N, 37), float32
        1 where the atom is observed.
    """
    beta, beta_mask = pseudo_beta(aatype, positions, mask)
    torsions = torsion_angles(aatype, positions, mask)
    return {
        "all_atom_positions": positions,
        "all_atom_mask": mask,
        "pseudo_beta": beta,
        "pseudo_beta_mask": beta_mask,
        "chi_angles_sin_cos": torsions.sin_cos[:, 3:],
        "chi_mask": torsions.mask[:, 3:],
        **atom_layout(aatype),
        **atom14_targets(aatype, positions, mask),
        **rigid_group_targets(aatype, positions, mask),
    }


def _number(value: float, device: torch.device) -> Tensor:
    # a constant that a kernel writes; torch.tensor would copy it from the host and wait
    return torch.full((), value, dtype=torch.float32, device=device)
