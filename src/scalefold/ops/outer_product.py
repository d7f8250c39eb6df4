"""Outer product mean (Suppl. Alg. 10): reference in plain torch.

Legend: B samples, S sequences, N/I/J residues, M channels of the MSA representation, C hidden
channels, Z channels of the pair representation.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.ops.norm import normed_projection
from scalefold.ops.precision import accumulation_dtype

EPS = 1e-3
"""Added to the number of sequences that two residues share."""


def outer_product_operands(
    m_BSNM: Tensor,
    mask_BSN: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight_a: Tensor,
    bias_a: Tensor,
    weight_b: Tensor,
    bias_b: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer normalisation of ``m``, two linear maps of its result, times the mask; and ``m``.

    Parameters
    ----------
    m_BSNM : Tensor
        MSA representation. Its other users take the returned one, as with `normed_projection`.
    mask_BSN : Tensor
    norm_weight, norm_bias : Tensor, shape (M,)
    weight_a, weight_b : Tensor, shape (C, M)
    bias_a, bias_b : Tensor, shape (C,)

    Returns
    -------
    a, b : Tensor, shape (B, S, N, C)
    m : Tensor, shape (B, S, N, M)
    """
    a, b, m = normed_projection(
        m_BSNM, norm_weight, norm_bias, [weight_a, weight_b], [bias_a, bias_b]
    )
    mask = mask_BSN[..., None].to(m.dtype)
    return a * mask, b * mask, m


def outer_product_mean(
    a_BSIC: Tensor,
    b_BSJC: Tensor,
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
        Operands, 0 where they are masked.
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
    outer = torch.einsum("bsic,bsjd->bijcd", a_BSIC, b_BSJC).flatten(-2)
    # bfloat16 cannot hold counts above 256.
    number = count_BIJ[..., None].to(accumulation_dtype(outer.dtype)) + EPS
    return z_BIJZ + (functional.linear(outer, weight, bias) / number).to(z_BIJZ.dtype)
