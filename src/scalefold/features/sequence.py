"""Features of the chain's sequence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.features.alignment import Window
from scalefold.features.atoms import atom_layout
from scalefold.features.contract import Features


def sequence_features(aatype: Tensor, window: Window) -> Features:
    """Features of the window's residues, unbatched.

    Parameters
    ----------
    aatype : Tensor, shape (M,), int64
    window : Window
    """
    device = aatype.device
    # the first channel marks domain breaks, which single chains do not have
    target_feat = functional.pad(functional.one_hot(aatype, 21).float(), (1, 0))
    return {
        "aatype": aatype,
        "residue_index": torch.arange(window.start, window.stop, device=device),
        "seq_mask": torch.ones(window.size, device=device),
        "target_feat": target_feat,
        **atom_layout(aatype),
    }
