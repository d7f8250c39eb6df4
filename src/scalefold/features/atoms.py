"""Atom layouts of a chain: atom37, atom14, alternative naming, pseudo-beta.

Legend: N residues; leading dimensions may be added to all. Positions in Å.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold.chem.residues import (
    ATOM14_IS_AMBIGUOUS,
    ATOM14_MASK,
    ATOM14_SWAP,
    ATOM14_TO_ATOM37,
    ATOM37_MASK,
    ATOM37_TO_ATOM14,
    CA,
    CB,
    RESTYPE_INDEX,
)
from scalefold.features.constants import per_residue
from scalefold.features.contract import Features


def atom_layout(aatype: Tensor) -> Features:
    """Which atoms the residue types have, and where: maps between atom14 and atom37.

    Parameters
    ----------
    aatype : Tensor, shape (N,), int64
        0-20.
    """
    return {
        "atom14_atom_exists": per_residue(ATOM14_MASK, aatype),
        "atom37_atom_exists": per_residue(ATOM37_MASK, aatype),
        "residx_atom14_to_atom37": per_residue(ATOM14_TO_ATOM37, aatype),
        "residx_atom37_to_atom14": per_residue(ATOM37_TO_ATOM14, aatype),
    }


def atom14_targets(aatype: Tensor, positions: Tensor, mask: Tensor) -> Features:
    """True atom14 positions under both namings of 180°-symmetric groups (Suppl. sec. 1.8.5).

    Parameters
    ----------
    aatype : Tensor, shape (N,), int64
    positions : Tensor, shape (N, 37, 3)
    mask : Tensor, shape (N, 37)
        1 where the atom is observed.
    """
    slots = per_residue(ATOM14_TO_ATOM37, aatype)
    exists = per_residue(ATOM14_MASK, aatype) * mask.gather(-1, slots)
    packed = exists[..., None] * positions.gather(-2, slots[..., None].expand(*slots.shape, 3))
    swap = per_residue(ATOM14_SWAP, aatype)
    return {
        "atom14_gt_positions": packed,
        "atom14_gt_exists": exists,
        "atom14_alt_gt_positions": packed.gather(-2, swap[..., None].expand(*swap.shape, 3)),
        "atom14_alt_gt_exists": exists.gather(-1, swap),
        "atom14_atom_is_ambiguous": per_residue(ATOM14_IS_AMBIGUOUS, aatype),
    }


def pseudo_beta(aatype: Tensor, positions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """C-beta positions, C-alpha for glycine.

    Parameters
    ----------
    aatype : Tensor, shape (..., N), int64
        0-21; a gap counts as not glycine.
    positions : Tensor, shape (..., N, 37, 3)
    mask : Tensor, shape (..., N, 37)

    Returns
    -------
    positions : Tensor, shape (..., N, 3)
    mask : Tensor, shape (..., N)
    """
    is_glycine = aatype == RESTYPE_INDEX["G"]
    return (
        torch.where(is_glycine[..., None], positions[..., CA, :], positions[..., CB, :]),
        torch.where(is_glycine, mask[..., CA], mask[..., CB]),
    )
