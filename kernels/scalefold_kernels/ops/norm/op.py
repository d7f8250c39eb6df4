"""``scalefold::layer_norm``: normalisation of the last dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.backends import TRITON, Backends
from scalefold_kernels.checks import check_shapes, check_types

_BACKENDS = Backends("layer_norm", __package__, TRITON)

MAX_CHANNELS = 8192
"""A CTA holds whole rows."""


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise the last dimension of a tensor of any strides; the result is contiguous."""
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x, weight, bias))
    return _layer_norm(x, weight, bias, keep)[0]


@torch.library.custom_op("scalefold::layer_norm", mutates_args=())
def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """The result, and the statistics for backward, see `new_stats`."""
    check_norm(x, weight, bias)
    stats = new_stats(x, keep)
    if x.numel() == 0:
        return x.new_empty(x.shape), stats
    kernels = _BACKENDS.choose("forward", x.device)
    filled = stats if keep else None
    return kernels.forward(x, weight.contiguous(), bias.contiguous(), filled), stats


@_layer_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), new_stats(x, keep)


def new_stats(x: Tensor, keep: bool = True) -> Tensor:
    """Memory for mean and 1 / standard deviation of each row, (2, R); of no row without ``keep``.

    Writing them takes up to 8 % of forward's time.
    """
    return x.new_empty(2, x.shape[:-1].numel() if keep else 0, dtype=torch.float32)


@torch.library.custom_op("scalefold::layer_norm_backward", mutates_args=())
def _layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, stats: Tensor, through: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of x, its gradient ``through`` elsewhere added; of weight and bias, (2, C)."""
    flat_grad = weight.new_empty(2, x.shape[-1])
    if x.numel() == 0:
        return x.new_empty(x.shape), flat_grad.zero_()
    kernels = _BACKENDS.choose("backward", x.device)
    grad_x, _ = kernels.backward(grad, x, weight, None, stats, through, flat_grad)
    return grad_x, flat_grad


@_layer_norm_backward.register_fake
def _(
    grad: Tensor, x: Tensor, weight: Tensor, stats: Tensor, through: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(2, x.shape[-1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
    grad_x, flat_grad = _layer_norm_backward(grad, *ctx.saved_tensors)
    return grad_x, flat_grad[0], flat_grad[1], None


_layer_norm.register_autograd(_backward, setup_context=_save)


def check_norm(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Raise ValueError for arguments that the kernels do not take."""
    channels = x.shape[-1]
    named = (("weight", weight, (channels,)), ("bias", bias, (channels,)))
    check_shapes(f"layer_norm of x {tuple(x.shape)}", named)
    if channels > MAX_CHANNELS:
        raise ValueError(f"layer_norm of {channels} channels; the kernel takes {MAX_CHANNELS}")
    check_types("layer_norm", (x,))
