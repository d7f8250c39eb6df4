"""Features of the chain itself: its sequence, and the structure to be learnt."""

from __future__ import annotations

import torch
from torch.nn import functional

from scalefold.errors import InputError
from scalefold.features.atoms import atom14_targets, atom_layout, pseudo_beta
from scalefold.features.contract import Features
from scalefold.features.rigid_groups import rigid_group_targets
from scalefold.features.torsions import torsion_angles
from scalefold.shards.records import ChainRecord


def chain_features(chain: ChainRecord, use_clamped_fape: bool, device: torch.device) -> Features:
    """Sequence features and targets over the full length, unbatched.

    Parameters
    ----------
    chain : ChainRecord
    use_clamped_fape : bool
        Clamp this sample's backbone FAPE.
    device : torch.device

    Raises
    ------
    InputError
        If the chain has no residues or no observed atom.
    """
    if len(chain) == 0 or not chain.atom_mask.any():
        raise InputError(
            f"{chain.chain_key}: {len(chain)} residues, {int(chain.atom_mask.sum())} observed "
            "atoms: nothing can be learnt from it; take it out of the table of chains"
        )
    num_res = len(chain)
    aatype = torch.from_numpy(chain.aatype).to(device).long()
    positions = torch.from_numpy(chain.positions).to(device)
    mask = torch.from_numpy(chain.atom_mask).to(device).float()
    beta, beta_mask = pseudo_beta(aatype, positions, mask)
    torsions = torsion_angles(aatype, positions, mask)
    # the first channel marks domain breaks, which single chains do not have
    target_feat = functional.pad(functional.one_hot(aatype, 21).float(), (1, 0))
    return {
        "aatype": aatype,
        "residue_index": torch.arange(num_res, device=device),
        "seq_mask": torch.ones(num_res, device=device),
        "target_feat": target_feat,
        "all_atom_positions": positions,
        "all_atom_mask": mask,
        "pseudo_beta": beta,
        "pseudo_beta_mask": beta_mask,
        "chi_angles_sin_cos": torsions.sin_cos[:, 3:],
        "chi_mask": torsions.mask[:, 3:],
        "resolution": torch.tensor(float(chain.resolution or 0.0), device=device),
        "seq_length": torch.tensor(num_res, device=device),
        "use_clamped_fape": torch.tensor(float(use_clamped_fape), device=device),
        **atom_layout(aatype),
        **atom14_targets(aatype, positions, mask),
        **rigid_group_targets(aatype, positions, mask),
    }
