"""``scalefold::global_attention``: LayerNorm, global attention along columns, gate and residual.

Besides the arguments, some vectors a column are kept for backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.backends import TRITON, Backends
from scalefold_kernels.checks import check_batch, check_shapes, check_types
from scalefold_kernels.packing import unpack
from scalefold_kernels.rows import channels_together

_BACKENDS = Backends("global_attention", __package__, TRITON)

MAX_CHANNELS = 128
"""A CTA holds a block of rows, and a weight of as many rows as the heads have channels."""


class Parameters(NamedTuple):
    """Contiguous; C channels, A of a head, D of all heads."""

    norm_weight: Tensor  # (C,)
    norm_bias: Tensor  # (C,)
    query_weight: Tensor  # (D, C)
    key_weight: Tensor  # (A, C)
    value_weight: Tensor  # (A, C)
    gate_weight: Tensor  # (D, C)
    gate_bias: Tensor  # (D,)
    out_weight: Tensor  # (C, D)
    out_bias: Tensor  # (C,)


def global_attention(x_BSNC: Tensor, mask_BSN: Tensor, *parameters: Tensor) -> Tensor:
    """``x`` plus: normalise, attend from each column's mean query to its rows, gate, project.

    Suppl. Alg. 19; any strides, (B, S, N, C) -> (B, S, N, C), contiguous. Legend: B samples, S
    rows, N columns, C channels.

    Parameters
    ----------
    x_BSNC : Tensor
    mask_BSN : Tensor
        1 for rows of a column that take part. Where none does, all do, with a query of 0.
    *parameters : Tensor
        In the order of `Parameters`.

    Raises ValueError where a shape or a type is wrong, or there are too many channels or samples.
    """
    return _global_attention(x_BSNC, mask_BSN, list(parameters))[0]


@torch.library.custom_op("scalefold::global_attention", mutates_args=())
def _global_attention(x: Tensor, mask: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """The result; what backward needs of columns, see the forward kernel."""
    x, contiguous = channels_together(x), checked(x, mask, *parameters)
    out, *columns = results(x, contiguous)
    if out.numel():
        backend = _BACKENDS.choose("forward", x.device)
        backend.forward(x, mask, contiguous, out, columns)
    return [out, *columns]


@_global_attention.register_fake
def _(x: Tensor, mask: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    return results(x, Parameters(*parameters))


@torch.library.custom_op("scalefold::global_attention_backward", mutates_args=())
def _global_attention_backward(
    grad: Tensor, x: Tensor, mask: Tensor, parameters: list[Tensor], columns: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of all parameters one after the other."""
    grad, x = channels_together(grad), channels_together(x)
    contiguous = Parameters(*(p.contiguous() for p in parameters))
    grad_x, flat_grad = x.new_empty(x.shape), _flat_grad(contiguous)
    if not x.numel():
        return grad_x, flat_grad.zero_()
    backend = _BACKENDS.choose("backward", x.device)
    backend.backward(grad, x, mask, contiguous, columns, grad_x, flat_grad)
    return grad_x, flat_grad


@_global_attention_backward.register_fake
def _(
    grad: Tensor, x: Tensor, mask: Tensor, parameters: list[Tensor], columns: list[Tensor]
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), _flat_grad(Parameters(*parameters))


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, mask, parameters = inputs
    _, *columns = output
    ctx.mark_non_differentiable(*columns)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, mask, *parameters, *columns)


def _backward(
    ctx: Any, grads: list[Tensor | None]
) -> tuple[Tensor | None, None, Sequence[Tensor | None]]:
    x, mask, *kept = ctx.saved_tensors
    number = len(Parameters._fields)
    parameters, columns = kept[:number], kept[number:]
    if grads[0] is None:
        return None, None, [None] * number
    grad_x, flat_grad = _global_attention_backward(grads[0], x, mask, parameters, columns)
    return grad_x, None, unpack(flat_grad, parameters)


_global_attention.register_autograd(_backward, setup_context=_save)


def results(x: Tensor, parameters: Parameters) -> list[Tensor]:
    """New memory for what the op returns."""
    batch, _, columns, channels = x.shape
    every, head = parameters.query_weight.shape[0], parameters.key_weight.shape[0]
    heads = every // head
    sizes = (channels,), (every,), (every,), (2, heads), (heads, channels), (heads, channels)
    kept = (x.new_empty((batch, columns, *size), dtype=torch.float32) for size in sizes)
    return [x.new_empty(x.shape), *kept]


def _flat_grad(parameters: Parameters) -> Tensor:
    return parameters.out_bias.new_empty(sum(p.numel() for p in parameters))


def checked(x: Tensor, mask: Tensor, *parameters: Tensor) -> Parameters:
    """Parameters for ``x`` (B, S, N, C) under ``mask`` (B, S, N); or a ValueError."""
    check_batch("global attention", x)
    channels = x.shape[-1]
    every, head = parameters[2].shape[0], parameters[3].shape[0]
    row, heads, of_all, of_one = (channels,), (every,), (every, channels), (head, channels)
    shapes = row, row, of_all, of_one, of_one, of_all, heads, (channels, every), row
    named = zip(Parameters._fields, parameters, shapes, strict=True)
    mask_too = [*named, ("mask", mask, x.shape[:-1])]
    check_shapes(f"global attention of x {tuple(x.shape)}", mask_too)
    if every % head:
        raise ValueError(
            f"query_weight has {every} rows, no multiple of the {head} of key_weight: each head "
            "has as many channels as the keys"
        )
    if max(channels, every) > MAX_CHANNELS:
        raise ValueError(
            f"global attention of {channels} channels and {every} of all heads; the kernels take "
            f"{MAX_CHANNELS}"
        )
    check_types("global attention", (x, *parameters))
    return Parameters(*(p.contiguous() for p in parameters))
