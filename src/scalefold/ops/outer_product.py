"""Outer product mean (Suppl. Alg. 10), from the projected operands on: reference in plain torch.

Legend: B samples, S sequences, I/J residues, C hidden channels, Z channels of the pair
representation.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

EPS = 1e-3
"""Added to the number of sequences that two residues share."""


def outer_product_mean(
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    mask_BSI: Tensor,
    mask_BSJ: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_BIJZ: Tensor,
) -> Tensor:
    """``z`` plus: sum over sequences of a_si (x) b_sj, projected, divided by their number.

    The bias is inside the division, as in AlphaFold2's code.

    Parameters
    ----------
    a_BSIC, b_BSJC : Tensor
        Projections.
    mask_BSI, mask_BSJ : Tensor
        Of each of them.
    count_BIJ : Tensor
        Number of sequences in which both residues are real.
    weight : Tensor, shape (Z, C * C)
    bias : Tensor, shape (Z,)
    z_BIJZ : Tensor
        Pair representation.

    Returns
    -------
    Tensor, shape (B, I, J, Z)
    """
    a, b = a_BSIC * mask_BSI[..., None].to(a_BSIC), b_BSJC * mask_BSJ[..., None].to(b_BSJC)
    outer = torch.einsum("bsic,bsjd->bijcd", a, b).flatten(-2)
    number = count_BIJ[..., None].to(outer.dtype) + EPS
    return z_BIJZ + functional.linear(outer, weight, bias) / number
