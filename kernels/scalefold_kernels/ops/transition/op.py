"""``scalefold::transition``: LayerNorm, linear, ReLU, linear and residual in one kernel.

For backward the normalised rows are kept, never the hidden channels; without backward nothing is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.backends import HOPPER, TRITON, Backends
from scalefold_kernels.checks import check_rows, check_shapes, check_types
from scalefold_kernels.limits import needs_int64
from scalefold_kernels.rows import channels_together
from scalefold_kernels.tiles import Config, config_for

_BACKENDS = Backends("transition", __package__, HOPPER, TRITON)

MAX_CHANNELS = 256
"""A CTA of the forward kernel holds whole rows, and their result in float32."""

_BLOCK = 256
"""Rows; no kernel has more in a block."""


class Parameters(NamedTuple):
    """Contiguous; C channels, H hidden ones."""

    norm_weight: Tensor  # (C,)
    norm_bias: Tensor  # (C,)
    up_weight: Tensor  # (H, C)
    up_bias: Tensor  # (H,)
    down_weight: Tensor  # (C, H)
    down_bias: Tensor  # (C,)


class Kept(NamedTuple):
    """What forward saves for backward."""

    normed: Tensor  # rows normalised, with the norm's weight and bias, (R, C)
    stats: Tensor  # mean and 1 / standard deviation of the rows, (2, R), float32


def transition(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
) -> Tensor:
    """As `api.transition`; the result is contiguous."""
    parameters = [norm_weight, norm_bias, up_weight, up_bias, down_weight, down_bias]
    backward = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters))
    return _transition(x, parameters, backward)[0]


@torch.library.custom_op("scalefold::transition", mutates_args=())
def _transition(x: Tensor, parameters: list[Tensor], keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and what is `Kept`, empty without ``keep``; parameters as in `Parameters`."""
    contiguous = checked(x, *parameters)
    out, *kept = _results(x, parameters, keep)
    if x.numel() > 0:
        rows = matrix(x)
        backend = _BACKENDS.choose("forward", x.device, rows, contiguous)
        backend.forward(rows, contiguous, out.view(rows.shape), Kept(*kept) if keep else None)
    return out, *kept


@_transition.register_fake
def _results(x: Tensor, parameters: list[Tensor], keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    channels = x.shape[-1]
    num_rows = x.numel() // channels if keep else 0
    stats = x.new_empty(2, num_rows, dtype=torch.float32)
    return x.new_empty(x.shape), x.new_empty(num_rows, channels), stats


@torch.library.custom_op("scalefold::transition_backward", mutates_args=())
def _transition_backward(
    grad: Tensor, x: Tensor, normed: Tensor, stats: Tensor, parameters: list[Tensor]
) -> list[Tensor]:
    """Gradients of x; of the norm's weight and bias as (2, C); of the four others in order."""
    rows, contiguous = matrix(x), checked(x, *parameters)
    backend = _BACKENDS.choose("backward", x.device, rows, contiguous)
    grad_x, *grads = backend.backward(matrix(grad), rows, Kept(normed, stats), contiguous)
    return [grad_x.view(x.shape), *grads]


@_transition_backward.register_fake
def _(
    grad: Tensor, x: Tensor, normed: Tensor, stats: Tensor, parameters: list[Tensor]
) -> list[Tensor]:
    norm_weight, _, *maps = parameters
    norm = norm_weight.new_empty(2, *norm_weight.shape)
    return [x.new_empty(x.shape), norm, *(weight.new_empty(weight.shape) for weight in maps)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, parameters, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, *output[1:], *parameters)


def _backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Any, ...]:
    x, normed, stats, *parameters = ctx.saved_tensors
    grad_x, grad_norm, *grads = _transition_backward(grad, x, normed, stats, parameters)
    return grad_x, [grad_norm[0], grad_norm[1], *grads], None


_transition.register_autograd(_backward, setup_context=_save)


def checked(x: Tensor, *parameters: Tensor) -> Parameters:
    """Parameters for ``x`` (..., C).

    Raises ValueError where a shape or a type is wrong, or there are too many channels.
    """
    channels, num_hidden = x.shape[-1], parameters[2].shape[0]
    row = (channels,)
    wanted = row, row, (num_hidden, channels), (num_hidden,), (channels, num_hidden), row
    named = zip(Parameters._fields, parameters, wanted, strict=True)
    check_shapes(f"transition of x {tuple(x.shape)}", named)
    if channels > MAX_CHANNELS:
        raise ValueError(f"transition of {channels} channels; the kernel takes {MAX_CHANNELS}")
    check_types("transition", (x, *parameters))
    return Parameters(*(p.contiguous() for p in parameters))


def matrix(x: Tensor) -> Tensor:
    """``x`` (..., C) as (R, C), rows contiguous; a copy only where its strides allow no view.

    Rows of a block are counted from its first in 32 bits: a copy, too, where they are further.
    """
    check_rows(x)
    rows = channels_together(x.reshape(-1, x.shape[-1]))
    return rows.contiguous() if needs_int64(rows[:_BLOCK]) else rows


def config_of(kernel: str, x_RC: Tensor, num_hidden: int, arch: str | None = None) -> Config:
    num_rows, channels = x_RC.shape
    return config_for(kernel, x_RC, arch, rows=num_rows, C=channels, H=num_hidden)
