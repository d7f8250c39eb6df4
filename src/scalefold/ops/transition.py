"""Transition (Suppl. Alg. 9, 15): reference in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.ops.norm import layer_norm


def transition(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
) -> Tensor:
    """``x`` plus: normalise, widen, ReLU, narrow; (..., C) -> (..., C).

    The sum is part of the operation, since a kernel has ``x`` in registers.
    """
    hidden = functional.linear(layer_norm(x, norm_weight, norm_bias), up_weight, up_bias)
    return x + functional.linear(torch.relu(hidden), down_weight, down_bias)
