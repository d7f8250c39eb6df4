"""Layer normalisation, alone and followed by projections: reference in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

EPS = 1e-5
"""AlphaFold2's (and torch's default) epsilon, added to the variance."""


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise the last dimension, statistics in float32 at least; (..., C) -> (..., C)."""
    return functional.layer_norm(x, weight.shape, weight, bias, EPS)


def normed_projection(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    first_scale: float = 1.0,
    last_scale: float = 1.0,
) -> tuple[Tensor, ...]:
    """Layer normalisation, then several linear maps of its one result; and ``x`` itself.

    Other users of ``x`` (a residual sum, another projection) take the returned one. A kernel then
    adds their gradients to x's while it has that in registers.

    Parameters
    ----------
    x : Tensor, shape (..., C)
    norm_weight, norm_bias : Tensor, shape (C,)
    weights : sequence of Tensor, shape (C_out, C)
    biases : sequence of Tensor, shape (C_out,), or None
    first_scale, last_scale : float
        What the first and the last projection are multiplied by, before kernels round them.

    Returns
    -------
    tuple of Tensor, shape (..., C_out)
        One for each weight; the last is ``x``.
    """
    normed = layer_norm(x, norm_weight, norm_bias)
    projected = [
        functional.linear(normed, weight, bias)
        for weight, bias in zip(weights, biases, strict=True)
    ]
    for position, scale in ((0, first_scale), (-1, last_scale)):
        if scale != 1:
            projected[position] = projected[position] * scale
    return *projected, x
