"""Gated attention with mask and pair bias: reference in plain torch.

Legend: B samples, R rows (independent attentions), Q/K query and key positions, H heads, C channels
of a head. Heads come after positions, as the projections leave them, so that attention along
columns is a transposed view of its inputs and never a copy made by the caller.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scalefold.ops.precision import accumulation_dtype

MASKED_LOGIT = 1e9
"""Subtracted from the logits of masked keys. Finite on purpose: a row whose keys are all masked (a
padded residue) then attends to all keys equally, and gives no NaN.
"""

LN2 = math.log(2)
"""``bias_scale`` of a bias in bits: log2(e) times the natural one, multiplied before it is rounded.
Kernels take powers of 2, and so need not multiply each logit. Also ``scale`` of queries in bits."""


def attention(
    q_BRQHC: Tensor,
    k_BRKHC: Tensor,
    v_BRKHC: Tensor,
    gate_BRQHC: Tensor | None,
    mask_BRK: Tensor,
    bias_BHQK: Tensor | None,
    bias_scale: float = 1.0,
    scale: float | None = None,
) -> Tensor:
    """Scaled dot-product attention of AlphaFold2 (core of Suppl. Alg. 7, 8, 13, 14, 17).

    Parameters
    ----------
    q_BRQHC, k_BRKHC, v_BRKHC : Tensor
        Projections; any strides.
    gate_BRQHC : Tensor or None
        Gate before its sigmoid.
    mask_BRK : Tensor
        1 for keys that take part; R may be 1 (the same mask for all rows).
    bias_BHQK : Tensor or None
        ``bias_scale`` times it is added to the logits of all rows.
    bias_scale : float
        1 for a natural bias, `LN2` for one in bits.
    scale : float, optional
        What the products of queries and keys are multiplied by; 1 / sqrt(C) if not given. Queries
        that were multiplied by ``1 / (sqrt(C) * bias_scale)`` before they were rounded, so that
        products are in the bias's unit, have ``bias_scale``.

    Returns
    -------
    Tensor, shape (B, R, Q, H, C), dtype of ``q``
        Softmax and its normalisation are in float32 at least. In bfloat16 the products of queries
        and keys are rounded once before, as torch's matrix product leaves them; kernels do not.
    """
    scale = q_BRQHC.shape[-1] ** -0.5 if scale is None else scale
    logits = torch.einsum("brqhc,brkhc->brhqk", q_BRQHC * scale, k_BRKHC)
    logits = logits.to(accumulation_dtype(logits.dtype))
    logits = logits + (MASKED_LOGIT * (mask_BRK.to(logits.dtype) - 1))[:, :, None, None, :]
    if bias_BHQK is not None:
        logits = logits + bias_scale * bias_BHQK[:, None].to(logits.dtype)
    weights = torch.softmax(logits, dim=-1).to(v_BRKHC.dtype)
    out = torch.einsum("brhqk,brkhc->brqhc", weights, v_BRKHC)
    return out if gate_BRQHC is None else out * torch.sigmoid(gate_BRQHC)
