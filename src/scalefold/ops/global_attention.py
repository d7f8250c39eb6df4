"""Global attention of the extra MSA, from LayerNorm to residual: reference in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.ops.attention import MASKED_LOGIT
from scalefold.ops.norm import layer_norm
from scalefold.ops.precision import accumulation_dtype

MEAN_EPS = 1e-10
"""Added to the number of positions in a mean query."""


def global_attention(
    x_BSNC: Tensor,
    mask_BSN: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    value_weight: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
) -> Tensor:
    """``x`` plus: normalise, attend from each column's mean query to its rows, gate, project.

    Suppl. Alg. 19. It is one operation, since a kernel then makes no queries, keys and values of
    rows: the mean query is that of the mean row, and heads share keys and values. Ranks hold whole
    columns, so no exchange has to go between.

    Parameters
    ----------
    x_BSNC : Tensor
        Legend: B samples, S rows, N columns, C channels, H heads, A channels of a head.
    mask_BSN : Tensor
        1 for rows of a column that take part. Where none does, all do, with a query of 0.
    norm_weight, norm_bias : Tensor, shape (C,)
    query_weight, gate_weight : Tensor, shape (H A, C)
    key_weight, value_weight : Tensor, shape (A, C)
    gate_bias : Tensor, shape (H A,)
    out_weight : Tensor, shape (C, H A)
    out_bias : Tensor, shape (C,)

    Returns
    -------
    Tensor, shape (B, S, N, C)
    """
    normed = layer_norm(x_BSNC, norm_weight, norm_bias)
    heads = (-1, key_weight.shape[0])
    # Sums over up to thousands of rows: in float32, not in bfloat16.
    accumulated = accumulation_dtype(x_BSNC.dtype)
    mask = mask_BSN.to(accumulated)
    query = functional.linear(normed, query_weight).unflatten(-1, heads)
    total = (query.to(accumulated) * mask[..., None, None]).sum(1)
    mean = total / (mask.sum(1)[..., None, None] + MEAN_EPS)
    key, value = (functional.linear(normed, weight) for weight in (key_weight, value_weight))
    scaled = mean.to(key.dtype) * key.shape[-1] ** -0.5
    logits = torch.einsum("bnha,bsna->bnhs", scaled, key).to(accumulated)
    logits = logits + (MASKED_LOGIT * (mask - 1)).transpose(1, 2)[:, :, None]
    weights = torch.softmax(logits, -1).to(value.dtype)
    result = torch.einsum("bnhs,bsna->bnha", weights, value)
    gate = torch.sigmoid(functional.linear(normed, gate_weight, gate_bias)).unflatten(-1, heads)
    update = (gate * result[:, None]).flatten(-2)
    return x_BSNC + functional.linear(update, out_weight, out_bias)
