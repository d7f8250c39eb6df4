"""Linear maps with what comes after them: reference in plain torch."""

from __future__ import annotations

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
