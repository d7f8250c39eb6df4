"""Targets: the structure of a chain, as the losses read it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scalefold.errors import InputError
from scalefold.features.atoms import atom14_targets, pseudo_beta
from scalefold.features.contract import Features
from scalefold.features.rigid_groups import rigid_group_targets
from scalefold.features.selection import Selection
from scalefold.features.torsions import torsion_angles
from scalefold.shards.records import ChainRecord


class RawTargets(NamedTuple):
    """What targets are made from; M residues of the crop.

    Attributes
    ----------
    positions : Tensor, shape (M, 37, 3), float32
        Å.
    atom_mask : Tensor, shape (M, 37), bool
    num_res : int
        Of the whole chain.
    resolution : float
        Å; 0 where unknown.
    clamped : bool
        Clamp the backbone FAPE.
    """

    positions: Tensor
    atom_mask: Tensor
    num_res: int
    resolution: float
    clamped: bool


def raw_targets(chain: ChainRecord, selection: Selection, min_plddt: float) -> RawTargets:
    """Collect what targets are made from. Tensors share the chain's memory.

    In a predicted structure, atoms of residues below ``min_plddt`` count as not observed. Its
    resolution is unknown, so loss terms that need one leave it out: pLDDT, resolved and PAE.
    Raises as `check_observed`.
    """
    check_observed(chain)
    part = slice(selection.crop.start, selection.crop.stop)
    mask = chain.atom_mask[part]
    if chain.confidence is not None:
        mask = mask & (chain.confidence[part, None] >= min_plddt)
    return RawTargets(
        positions=torch.from_numpy(chain.positions[part]),
        atom_mask=torch.from_numpy(mask),
        num_res=len(chain),
        resolution=float(chain.resolution or 0.0),
        clamped=selection.clamped,
    )


def check_observed(chain: ChainRecord) -> None:
    """Raise an InputError if a chain has no observed atom."""
    if not chain.atom_mask.any():
        raise InputError(
            f"{chain.chain_key}: {len(chain)} residues, 0 observed atoms: nothing can be learnt "
            "from it; take it out of the table of chains"
        )


def target_features(aatype: Tensor, raw: RawTargets) -> Features:
    """Targets of the residues that are used, unbatched.

    Parameters
    ----------
    aatype : Tensor, shape (M,), int64
    """
    device = aatype.device
    return {
        "resolution": _number(raw.resolution, device),
        "seq_length": torch.full((), raw.num_res, device=device),
        "use_clamped_fape": _number(raw.clamped, device),
        **structure_targets(aatype, raw.positions, raw.atom_mask.float()),
    }


def structure_targets(aatype: Tensor, positions: Tensor, mask: Tensor) -> Features:
    """The true structure for the losses, unbatched.

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
        **atom14_targets(aatype, positions, mask),
        **rigid_group_targets(aatype, positions, mask),
    }


def _number(value: float, device: torch.device) -> Tensor:
    # a constant that a kernel writes; torch.tensor would copy it from the host and wait
    return torch.full((), value, dtype=torch.float32, device=device)
