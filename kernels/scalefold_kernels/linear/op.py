"""``scalefold::residual_linear``: a linear map, dropout and the sum with a residual."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from scalefold_kernels.dropout.arguments import Dropout
from scalefold_kernels.gpu import runs_gluon
from scalefold_kernels.linear import portable
from scalefold_kernels.linear.arguments import Update, check


def residual_linear(
    x: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    dropout: tuple[Tensor, int, float, int | None] | None,
) -> Tensor:
    """``x`` plus a linear map of ``h``, some of its elements dropped.

    Parameters
    ----------
    x : Tensor, shape (B, ..., C), two to four dimensions
    h : Tensor, shape (B, ..., K)
    weight : Tensor, shape (C, K)
    bias : Tensor, shape (C,)
    dropout : tuple or None
        Key (B,), layer, rate, and the dimension, counted from the end, that shares one mask.
    """
    key, *others = (None, 0, 0.0, None) if dropout is None else dropout
    return _residual_linear(x, h, weight, bias, key, *others)


@torch.library.custom_op("scalefold::residual_linear", mutates_args=())
def _residual_linear(
    x: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    key: Tensor | None,
    layer: int,
    rate: float,
    shared_dim: int | None,
) -> Tensor:
    check(x, h, weight, bias)
    if x.numel() == 0:
        return x.new_empty(x.shape)
    dropout = None if key is None else Dropout(key, layer, rate, shared_dim)
    update = Update(x, weight, dropout)
    x, h, weight, bias = (t.contiguous() for t in (x, h, weight, bias))
    kernels = _hopper(update, x, h, weight, direction="forward") or portable
    out: Tensor = kernels.forward(x, h, weight, bias, update)
    return out


@_residual_linear.register_fake
def _(
    x: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    key: Tensor | None,
    layer: int,
    rate: float,
    shared_dim: int | None,
) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("scalefold::residual_linear_backward", mutates_args=())
def _residual_linear_backward(
    grad: Tensor,
    h: Tensor,
    weight: Tensor,
    key: Tensor | None,
    layer: int,
    rate: float,
    shared_dim: int | None,
) -> tuple[Tensor, Tensor]:
    """Gradient of ``h``; of weight and bias as one vector."""
    grad_h, parameters = _gradients(h, weight)
    if grad.numel() == 0:
        return grad_h, parameters.zero_()
    dropout = None if key is None else Dropout(key, layer, rate, shared_dim)
    update = Update(grad, weight, dropout)
    grad, h, weight = (t.contiguous() for t in (grad, h, weight))
    kernels = _hopper(update, grad, h, weight, direction="backward") or portable
    kernels.backward(grad, h, weight, update, grad_h, parameters)
    return grad_h, parameters


@_residual_linear_backward.register_fake
def _(
    grad: Tensor,
    h: Tensor,
    weight: Tensor,
    key: Tensor | None,
    layer: int,
    rate: float,
    shared_dim: int | None,
) -> tuple[Tensor, Tensor]:
    return _gradients(h, weight)


def _gradients(h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), weight.new_empty(weight.numel() + weight.shape[0])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, h, weight, _, key, *ctx.constants = inputs
    ctx.save_for_backward(h, weight, key)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    h, weight, key = ctx.saved_tensors
    grad_h, parameters = _residual_linear_backward(grad, h, weight, key, *ctx.constants)
    end = weight.numel()
    grad_weight, grad_bias = parameters[:end].view(weight.shape), parameters[end:]
    return grad, grad_h, grad_weight, grad_bias, None, None, None, None


_residual_linear.register_autograd(_backward, setup_context=_save)


@cache
def _hopper_module() -> ModuleType:
    return import_module("scalefold_kernels.linear.hopper_launch")


def _hopper(
    update: Update, *matrices: Tensor, direction: Literal["forward", "backward"]
) -> ModuleType | None:
    """Kernels of a Hopper GPU, where they serve these arguments."""
    if not runs_gluon(matrices[0]):
        return None
    module = _hopper_module()
    return module if module.serves(update, *matrices, direction=direction) else None
