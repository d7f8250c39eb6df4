"""What is wrong with the geometry of a chain, by the tolerances of AlphaFold2's violation loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalefold.evaluate.metrics.comparison import Comparison
from scalefold.evaluate.metrics.stereochemistry import stereochemistry
from scalefold.features.atoms import atom14_targets
from scalefold.loss.violation import violation_loss


def violations(aatype: Tensor, positions: Tensor, mask: Tensor) -> dict[str, Any]:
    """Return ``broken_bonds`` and ``clashes``, counted, and the ``violation_loss``.

    Parameters
    ----------
    aatype : Tensor, shape (N,)
        Residue types 0-20.
    positions : Tensor, shape (N, 37, 3)
        Å.
    mask : Tensor, shape (N, 37)
        The atom is there.
    """
    counted = stereochemistry(Comparison(positions, mask, positions, mask, aatype))
    atoms = atom14_targets(aatype, positions, mask.to(positions.dtype))
    loss = violation_loss(
        atoms["atom14_gt_positions"][None],
        atoms["atom14_gt_exists"][None],
        torch.arange(len(aatype))[None],
        aatype[None],
    )
    return {
        "broken_bonds": counted.broken_bonds,
        "clashes": counted.clashes,
        "violation_loss": round(float(loss), 6),
    }
