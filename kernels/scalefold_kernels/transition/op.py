"""``scalefold::transition``: LayerNorm, linear, ReLU, linear and residual in one kernel.

Nothing but the arguments is kept for backward.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.gpu import runs_gluon
from scalefold_kernels.transition import portable
from scalefold_kernels.transition.arguments import Parameters, checked, rows_of


@torch.library.custom_op("scalefold::transition", mutates_args=())
def transition(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
) -> Tensor:
    """``x`` plus: normalise, widen, ReLU, narrow; (..., C) -> (..., C), contiguous.

    Parameters
    ----------
    x : Tensor, shape (..., C)
    norm_weight, norm_bias, down_bias : Tensor, shape (C,)
    up_weight : Tensor, shape (H, C)
    up_bias : Tensor, shape (H,)
    down_weight : Tensor, shape (C, H)
    """
    parameters = checked(x, norm_weight, norm_bias, up_weight, up_bias, down_weight, down_bias)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() > 0:
        rows = rows_of(x)
        kernels = _hopper(rows, parameters) or portable
        kernels.forward(rows, parameters, out.view(rows.shape))
    return out


@transition.register_fake
def _(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("scalefold::transition_backward", mutates_args=())
def transition_backward(
    grad: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x; of the norm's weight and bias as (2, C); of the four others in order."""
    parameters = checked(x, norm_weight, norm_bias, up_weight, up_bias, down_weight, down_bias)
    rows = rows_of(x)
    kernels = _hopper(rows, parameters) or portable
    grad_x, *others = kernels.backward(rows_of(grad), rows, parameters)
    return grad_x.view(x.shape), *others


@transition_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    channels = x.shape[-1]
    return (
        x.new_empty(x.shape),
        norm_weight.new_empty(2, channels),
        up_weight.new_empty(up_weight.shape),
        up_bias.new_empty(up_bias.shape),
        down_weight.new_empty(down_weight.shape),
        x.new_empty(channels),
    )


@cache
def _hopper_module() -> ModuleType:
    return import_module("scalefold_kernels.transition.hopper_launch")


def _hopper(rows: Tensor, parameters: Parameters) -> ModuleType | None:
    """Kernels of a Hopper GPU, where they serve these arguments."""
    if not runs_gluon(rows):
        return None
    module = _hopper_module()
    return module if module.serves(rows, parameters) else None


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    grad_x, grad_norm, *others = transition_backward(grad, *ctx.saved_tensors)
    return grad_x, grad_norm[0], grad_norm[1], *others


transition.register_autograd(_backward, setup_context=_save)
