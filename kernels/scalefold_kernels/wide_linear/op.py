"""``scalefold::wide_linear``: a linear layer of float32 tensors with few rows, on tensor cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.wide_linear.launch import gradients, product


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
def wide_linear_backward(grad: Tensor, weight: Tensor, passed: Tensor | None) -> Tensor:
    """Gradient of x; ``passed`` is the result of a layer with a ReLU."""
    grads = grad.reshape(-1, grad.shape[-1])
    mask = None if passed is None else passed.reshape(grads.shape)
    return product(grads, weight, passed=mask).view(*grad.shape[:-1], weight.shape[1])


@wide_linear_backward.register_fake
def _(grad: Tensor, weight: Tensor, passed: Tensor | None) -> Tensor:
    return grad.new_empty(*grad.shape[:-1], weight.shape[1])


def wide_linear_gradients(
    grads: Sequence[Tensor], rows: Sequence[Tensor], results: Sequence[Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Gradients of weight and bias of a `wide_linear` that was applied several times.

    Parameters
    ----------
    grads : sequence of Tensor, shape (..., C), float32
        Of each result.
    rows : sequence of Tensor, shape (..., K), float32
        What it was applied to.
    results : sequence of Tensor, shape (..., C), float32, or None
        What its ReLU made, if it has one.

    Returns
    -------
    Tensor, shape (C, K)
    Tensor, shape (C,)

    Raises
    ------
    ValueError
        Shapes differ from each other, or a type is wrong.
    """
    found: tuple[Tensor, Tensor] = _wide_linear_gradients(
        list(grads), list(rows), [] if results is None else list(results)
    )
    return found


@torch.library.custom_op("scalefold::wide_linear_gradients", mutates_args=())
def _wide_linear_gradients(
    grads: Sequence[Tensor], rows: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    _check_uses(grads, rows, results)
    matrices = ([t.flatten(0, -2).contiguous() for t in of] for of in (grads, results, rows))
    return gradients(*matrices)


@_wide_linear_gradients.register_fake
def _(
    grads: Sequence[Tensor], rows: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    outputs, inputs = grads[0].shape[-1], rows[0].shape[-1]
    return grads[0].new_empty(outputs, inputs), grads[0].new_empty(outputs)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, relu = inputs
    ctx.save_for_backward(x, weight, output if relu else None)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, passed = ctx.saved_tensors
    grad_x = wide_linear_backward(grad, weight, passed) if ctx.needs_input_grad[0] else None
    if not any(ctx.needs_input_grad[1:3]):
        return grad_x, None, None, None
    of_parameters = wide_linear_gradients([grad], [x], None if passed is None else [passed])
    return grad_x, *of_parameters, None


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


def _check_uses(grads: Sequence[Tensor], rows: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    shapes = [[tuple(t.shape) for t in tensors] for tensors in (grads, rows, results)]
    of_grads, of_rows, of_results = map(set, shapes)
    alike = len(of_grads) == len(of_rows) == 1 and len(grads) == len(rows)
    if not alike or {s[:-1] for s in of_grads} != {s[:-1] for s in of_rows}:
        raise ValueError(
            f"wide_linear's gradients: gradients of results have shapes {shapes[0]}, rows "
            f"{shapes[1]}; there must be as many, each kind of one shape, alike but for the last"
        )
    if results and (of_results != of_grads or len(results) != len(grads)):
        raise ValueError(
            f"wide_linear's gradients: results have shapes {shapes[2]}, their gradients {shapes[0]}"
        )
    dtypes = {t.dtype for t in (*grads, *rows, *results)}
    if dtypes != {torch.float32}:
        raise ValueError(f"wide_linear takes float32; found {sorted(map(str, dtypes))}")
