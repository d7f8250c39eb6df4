"""Attention by features, pairs and distances of points (Suppl. Alg. 22): reference in plain torch.

Legend: B samples, N residues, I/J residues as queries and keys, H heads, C channels of a head,
P points of queries and keys, V of values, Z channels of a pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def point_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_points: Tensor,
    k_points: Tensor,
    v_points: Tensor,
    pair_logits: Tensor,
    point_weight: Tensor,
    pair: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Features, points and pairs of the keys under weights from all three (Alg. 22, lines 7-10).

    Parameters
    ----------
    q, k, v : Tensor, shape (B, N, H, C)
    q_points, k_points : Tensor, shape (B, N, H, P, 3)
        In the global frame.
    v_points : Tensor, shape (B, N, H, V, 3)
    pair_logits : Tensor, shape (B, H, I, J)
        What pair and mask add to the logits.
    point_weight : Tensor, shape (H,)
        Of half a squared distance in the logits.
    pair : Tensor, shape (B, I, J, Z)

    Returns
    -------
    Tensor, shape (B, N, H, C)
    Tensor, shape (B, N, H, V, 3)
    Tensor, shape (B, N, H, Z)
    Tensor, shape (B, H, I, J)
        Logits, for `point_attention_pair_gradient`; without a gradient.
    Tensor, shape (B, H, I, 2)
        For the same: a query's highest logit, and one over the sum of exp(logit - highest) over its
        keys.
    """
    logits = _logits(q, k, q_points, k_points, point_weight) + pair_logits
    weights = torch.softmax(logits, dim=-1)
    kept = logits.detach()
    highest = kept.amax(-1, keepdim=True)
    norms = torch.cat([highest, 1 / torch.exp(kept - highest).sum(-1, keepdim=True)], -1)
    # Features and points of the values under the same weights: one product.
    values = torch.cat([v, v_points.flatten(-2)], -1)
    out, out_points = torch.einsum("bhij,bjhc->bihc", weights, values).tensor_split(
        [v.shape[-1]], dim=-1
    )
    out_pair = torch.einsum("bhij,bijc->bihc", weights, pair)
    return out, out_points.unflatten(-1, (-1, 3)), out_pair, kept, norms


def point_attention_pair_gradient(
    grads: Sequence[Tensor], logits: Sequence[Tensor], norms: Sequence[Tensor]
) -> Tensor:
    """Gradient of pairs to which several layers attended.

    Parameters
    ----------
    grads : sequence of Tensor, shape (B, N, H, Z)
        Of each layer's third result of `point_attention`.
    logits, norms : sequence of Tensor, shapes (B, H, I, J), (B, H, I, 2)
        What that layer gave besides.

    Returns
    -------
    Tensor, shape (B, I, J, Z)
    """
    weights = (
        torch.exp(logit - norm[..., :1]) * norm[..., 1:]
        for logit, norm in zip(logits, norms, strict=True)
    )
    return torch.einsum("bhij,bihc->bijc", torch.cat([*weights], 1), torch.cat([*grads], 2))


def _logits(
    q: Tensor, k: Tensor, q_points: Tensor, k_points: Tensor, point_weight: Tensor
) -> Tensor:
    """What features and distances of points add to the logits, (B, H, I, J).

    As one product, q k - w/2 |x - y|^2 = (q, w x, -w/2 |x|^2, 1) (k, y, 1, -w/2 |y|^2). In
    float64, because squares of coordinates cancel in it, and TF32 would round them.
    """
    weight = point_weight[:, None].double()
    x, y = q_points.flatten(-2).double(), k_points.flatten(-2).double()
    one = torch.ones_like(x[..., :1])
    # Each of the three kinds of logits has unit variance at initialisation; each weighs 1/3.
    scale = (3 * q.shape[-1]) ** -0.5
    queries = [q * scale, weight * x, -0.5 * weight * _square(x), one]
    keys = [k, y, one, -0.5 * weight * _square(y)]
    product = torch.einsum("bihc,bjhc->bhij", torch.cat(queries, -1), torch.cat(keys, -1))
    return product.to(q.dtype)


def _square(x: Tensor) -> Tensor:
    return x.square().sum(-1, keepdim=True)
