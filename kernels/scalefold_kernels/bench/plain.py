"""What kernels are compared with: each op in plain torch. Shapes are those of the ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.dropout.mask import Dropout
from scalefold_kernels.ops.global_attention.op import Parameters


def _wider(dtype: torch.dtype) -> torch.dtype:
    """In which references sum: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm."""
    return functional.layer_norm(x, weight.shape, weight, bias)


def projection(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    first_scale: float = 1.0,
    last_scale: float = 1.0,
) -> tuple[Tensor, ...]:
    """Of a LayerNorm; x itself is the last result."""
    normed = norm(x, norm_weight, norm_bias)
    first, *projected = (functional.linear(normed, *pair) for pair in zip(weights, biases))
    if projected:
        projected[-1] = projected[-1] * last_scale
    return first * first_scale, *projected, x


def linear(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, dropout: Any) -> Tensor:
    """Added to the residual, with dropout if it is not None."""
    update = functional.linear(h, weight, bias)
    return x + (update if dropout is None else Dropout(*dropout).applied(update))


def transition(x: Tensor, *parameters: Tensor) -> Tensor:
    """From LayerNorm to residual."""
    normalisation, up, down = (parameters[i : i + 2] for i in (0, 2, 4))
    hidden = functional.linear(norm(x, *normalisation), *up)
    return x + functional.linear(torch.relu(hidden), *down)


def attention(q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Tensor:
    """With pair bias, mask and gate; the softmax in float32 at least."""
    gate, mask, bias, bias_scale, scale = more
    logits = torch.einsum("brqhc,brkhc->brhqk", q * scale, k).to(_wider(q.dtype))
    logits = logits + 1e9 * (mask.to(logits.dtype) - 1)[:, :, None, None, :]
    if bias is not None:
        logits = logits + bias_scale * bias[:, None].to(logits.dtype)
    out = torch.einsum("brhqk,brkhc->brqhc", torch.softmax(logits, dim=-1).to(v.dtype), v)
    return out if gate is None else out * torch.sigmoid(gate)


def global_attention(x: Tensor, mask: Tensor, *parameters: Tensor) -> Tensor:
    """From LayerNorm to residual; sums over rows in float32 at least."""
    p = Parameters(*parameters)
    normed = norm(x, p.norm_weight, p.norm_bias)
    heads = (-1, p.key_weight.shape[0])
    query = functional.linear(normed, p.query_weight).unflatten(-1, heads).to(_wider(x.dtype))
    mask = mask.to(query.dtype)
    mean = (query * mask[..., None, None]).sum(1) / (mask.sum(1)[..., None, None] + 1e-10)
    key, value = (functional.linear(normed, weight) for weight in (p.key_weight, p.value_weight))
    scaled = mean.to(key.dtype) * key.shape[-1] ** -0.5
    logits = torch.einsum("bnha,bsna->bnhs", scaled, key).to(query.dtype)
    logits = logits + 1e9 * (mask - 1).transpose(1, 2)[:, :, None]
    weights = torch.softmax(logits, -1).to(value.dtype)
    result = torch.einsum("bnhs,bsna->bnha", weights, value)
    gate = torch.sigmoid(functional.linear(normed, p.gate_weight, p.gate_bias)).unflatten(-1, heads)
    return x + functional.linear((gate * result[:, None]).flatten(-2), p.out_weight, p.out_bias)


def pointwise_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Of each position to a few keys there; the softmax in float32 at least."""
    logits = torch.einsum("bphc,btphc->bpht", q * q.shape[-1] ** -0.5, k).to(_wider(q.dtype))
    logits = logits + 1e9 * (mask.to(logits.dtype) - 1)[:, None, None, :]
    return torch.einsum("bpht,btphc->bphc", torch.softmax(logits, dim=-1).to(v.dtype), v)


def operands(m: Tensor, mask: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    """Of the outer product; m itself is the last result."""
    normalisation, *maps = (parameters[i : i + 2] for i in (0, 2, 4))
    normed = norm(m, *normalisation)
    a, b = (functional.linear(normed, *each) * mask[..., None] for each in maps)
    return a, b, m


def outer_product_mean(
    a: Tensor, b: Tensor, count: Tensor, weight: Tensor, bias: Tensor, z: Tensor
) -> Tensor:
    """From operands to residual; the division in float32 at least."""
    outer = torch.einsum("bsic,bsjd->bijcd", a, b).flatten(-2)
    number = count[..., None].to(_wider(outer.dtype)) + 1e-3
    return z + (functional.linear(outer, weight, bias) / number).to(z.dtype)


def triangle(
    direction: str, z: Tensor, mask: Tensor, before: Sequence[Tensor], after: Sequence[Tensor]
) -> Tensor:
    """Multiplication from LayerNorm to residual; parameters before and after the product."""
    normed = norm(z, *before[:2])
    a, a_gate, b, b_gate, gate = (
        functional.linear(normed, *before[i : i + 2]) for i in range(2, 12, 2)
    )
    a, b = (x * mask[..., None] * torch.sigmoid(g) for x, g in ((a, a_gate), (b, b_gate)))
    places = "bikc,bjkc->bijc" if direction == "outgoing" else "bkic,bkjc->bijc"
    product = norm(torch.einsum(places, a, b), *after[:2])
    return z + functional.linear(product, *after[2:]) * torch.sigmoid(gate)
