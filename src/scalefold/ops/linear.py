"""Linear maps with what comes after them: reference in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.ops.dropout import Dropout, residual_dropout


def residual_linear(
    x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, dropout: Dropout | None
) -> Tensor:
    """``x`` plus a linear map of ``h``, some of its elements dropped: the end of an attention.

    Parameters
    ----------
    x : Tensor, shape (B, ..., C)
    h : Tensor, shape (B, ..., K)
    weight : Tensor, shape (C, K)
    bias : Tensor, shape (C,)
    dropout : Dropout or None
        Of the map's result, coordinates its own.
    """
    update = functional.linear(h, weight, bias)
    return x + update if dropout is None else residual_dropout(x, update, *dropout)


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """A linear map of few rows in float32, then perhaps a ReLU; (..., K) -> (..., C).

    Parameters
    ----------
    x : Tensor, shape (..., K)
    weight : Tensor, shape (C, K)
    bias : Tensor, shape (C,)
    relu : bool
    """
    out = functional.linear(x, weight, bias)
    return torch.relu(out) if relu else out


def wide_linear_gradients(
    grads: Sequence[Tensor], rows: Sequence[Tensor], results: Sequence[Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Gradients of weight and bias of a `wide_linear` that was applied several times.

    Parameters
    ----------
    grads : sequence of Tensor, shape (..., C)
        Of each result.
    rows : sequence of Tensor, shape (..., K)
        What it was applied to.
    results : sequence of Tensor, shape (..., C), or None
        What its ReLU made, if it has one.

    Returns
    -------
    Tensor, shape (C, K)
    Tensor, shape (C,)
    """
    grad, x = (torch.cat([t.flatten(0, -2) for t in tensors]) for tensors in (grads, rows))
    if results is not None:
        grad = grad * (torch.cat([t.flatten(0, -2) for t in results]) > 0)
    return grad.t() @ x, grad.sum(0)
