"""Features of the chain's sequence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.features.atoms import atom_layout
from scalefold.features.contract import Features


def sequence_features(aatype: Tensor, residues: Tensor) -> Features:
    """Features of the residues that are used, unbatched.

    Parameters
    ----------
    aatype : Tensor, shape (M,), int64
    residues : Tensor, shape (M,), int64
        Their indices in the chain.
    """
    # the first channel marks domain breaks, which single chains do not have
    target_feat = functional.pad(functional.one_hot(aatype, 21).float(), (1, 0))
    return {
        "aatype": aatype,
        "residue_index": residues,
        "seq_mask": torch.ones(len(residues), device=residues.device),
        "target_feat": target_feat,
        **atom_layout(aatype),
    }
