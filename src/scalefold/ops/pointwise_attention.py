"""Attention of one query at each position to a few keys there: reference in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold.ops.attention import MASKED_LOGIT
from scalefold.ops.precision import accumulation_dtype


def pointwise_attention(
    q_BPHC: Tensor, k_BTPHC: Tensor, v_BTPHC: Tensor, mask_BT: Tensor
) -> Tensor:
    """Attention of the query at each position to the keys at it (core of Suppl. Alg. 17).

    Parameters
    ----------
    q_BPHC : Tensor
        Unscaled. Legend: B samples, T keys, P positions, H heads, C channels.
    k_BTPHC, v_BTPHC : Tensor
    mask_BT : Tensor
        1 for keys that take part. Where none does, all do.

    Returns
    -------
    Tensor, shape (B, P, H, C), dtype of ``q``
        Softmax and its normalisation are in float32 at least.
    """
    logits = torch.einsum("bphc,btphc->bpht", q_BPHC * q_BPHC.shape[-1] ** -0.5, k_BTPHC)
    logits = logits.to(accumulation_dtype(logits.dtype))
    logits = logits + (MASKED_LOGIT * (mask_BT.to(logits.dtype) - 1))[:, None, None, :]
    weights = torch.softmax(logits, dim=-1).to(v_BTPHC.dtype)
    return torch.einsum("bpht,btphc->bphc", weights, v_BTPHC)
