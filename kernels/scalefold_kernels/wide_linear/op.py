"""``scalefold::wide_linear``: a linear layer of float32 tensors with few rows, on tensor cores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.wide_linear.launch import product


@torch.library.custom_op("scalefold::wide_linear", mutates_args=())
def _wide_linear(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    _check(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    out = product(rows, weight.t(), bias=bias, relu=relu)
    return out.view(*x.shape[:-1], weight.shape[0])


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """Linear map, then perhaps a ReLU; (..., K) -> (..., C), contiguous, float32.

    Parameters
    ----------
    x : Tensor, shape (..., K), float32
    weight : Tensor, shape (C, K), float32
    bias : Tensor, shape (C,), float32
    relu : bool

    Raises
    ------
    ValueError
        A shape or a type is wrong.
    """
    out: Tensor = _wide_linear(x, weight, bias, relu)
    return out


@_wide_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("scalefold::wide_linear_backward", mutates_args=())
def wide_linear_backward(
    grad: Tensor, x: Tensor, weight: Tensor, passed: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias; ``passed`` is the result of a layer with a ReLU."""
    grads = grad.reshape(-1, grad.shape[-1])
    mask = None if passed is None else passed.reshape(grads.shape)
    rows = x.reshape(-1, x.shape[-1])
    turned = None if mask is None else mask.t()
    grad_bias = weight.new_empty(weight.shape[0])
    grad_weight = product(grads.t(), rows, passed=turned, sums=grad_bias)
    return product(grads, weight, passed=mask).view(x.shape), grad_weight, grad_bias


@wide_linear_backward.register_fake
def _(
    grad: Tensor, x: Tensor, weight: Tensor, passed: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = x.shape, weight.shape, weight.shape[:1]
    grads = tuple(x.new_empty(shape) for shape in shapes)
    return grads[0], grads[1], grads[2]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, relu = inputs
    ctx.save_for_backward(x, weight, output if relu else None)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *wide_linear_backward(grad, *ctx.saved_tensors), None


_wide_linear.register_autograd(_backward, setup_context=_setup)


def _check(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    wanted = (weight.shape[0], x.shape[-1])
    if weight.shape != wanted or bias.shape != wanted[:1]:
        raise ValueError(
            f"wide_linear of x {tuple(x.shape)}: weight {tuple(weight.shape)} and bias "
            f"{tuple(bias.shape)} must be {wanted} and {wanted[:1]}"
        )
    dtypes = {t.dtype for t in (x, weight, bias)}
    if dtypes != {torch.float32}:
        raise ValueError(f"wide_linear takes float32; found {sorted(map(str, dtypes))}")
