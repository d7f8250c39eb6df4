"""``scalefold::layer_norm``: launches and registration."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from scalefold_kernels.ops.norm.kernel import (
    layer_norm_backward_kernel,
    layer_norm_forward_kernel,
)
from scalefold_kernels.rows import Rows, rows_of
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import architecture, tile

EPS = 1e-5

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_CHANNELS = 8192
"""A program holds whole rows."""


def shape(rows: Rows, **more: int) -> dict[str, int | str]:
    """What the tables' rules speak of."""
    x = rows.tensor
    dtype = str(x.dtype).removeprefix("torch.")
    return {"rows": rows.num_rows, "C": x.shape[-1], **more, "dtype": dtype}


def geometry(rows: Rows) -> tuple[int, ...]:
    """Sizes and strides as the kernels take them."""
    return (*rows.sizes, *rows.strides)


def check(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Raise ValueError where the kernels do not serve."""
    channels = x.shape[-1]
    if weight.shape != (channels,) or bias.shape != (channels,):
        raise ValueError(
            f"layer_norm of {channels} channels: weight has shape {tuple(weight.shape)}, bias "
            f"{tuple(bias.shape)}; both must be ({channels},)"
        )
    if channels > MAX_CHANNELS:
        raise ValueError(f"layer_norm of {channels} channels; the kernel takes {MAX_CHANNELS}")
    if x.dtype not in DTYPES:
        raise ValueError(f"layer_norm of {x.dtype}; the kernel takes float32, bfloat16, float16")


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise the last dimension of a tensor of any strides; the result is contiguous."""
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x, weight, bias))
    out: Tensor = torch.ops.scalefold.layer_norm(x, weight, bias, keep)[0]
    return out


@torch.library.custom_op("scalefold::layer_norm", mutates_args=())
def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """The result, and what backward, if there is to be one, needs of each row, see `new_stats`."""
    check(x, weight, bias)
    stats = new_stats(x, keep)
    filled = stats if keep else None
    return launch_forward(x, weight.contiguous(), bias.contiguous(), filled), stats


@_layer_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), new_stats(x, keep)


def launch_forward(x: Tensor, weight: Tensor, bias: Tensor, stats: Tensor | None) -> Tensor:
    """The normalised rows; fills ``stats``, if given. Parameters are contiguous."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    rows, channels = rows_of(x), x.shape[-1]
    block_c = triton.next_power_of_2(channels)
    launch = tile("layer_norm_forward", architecture(x.device), shape(rows))
    block_r = max(1, launch.pop("ELEMENTS") // block_c)
    layer_norm_forward_kernel[(triton.cdiv(rows.num_rows, block_r),)](
        rows.tensor,
        weight,
        bias,
        out,
        stats,
        rows.num_rows,
        geometry(rows),
        C=channels,
        EPS=EPS,
        ROW_DIMS=rows.num_dims,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        **launch,
    )
    return out


def new_stats(x: Tensor, keep: bool = True) -> Tensor:
    """Memory for mean and 1 / standard deviation of each row, (2, R); of no row without ``keep``.

    Writing them takes up to 8 % of forward's time.
    """
    return x.new_empty(2, x.shape[:-1].numel() if keep else 0, dtype=torch.float32)


@torch.library.custom_op("scalefold::layer_norm_backward", mutates_args=())
def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, stats: Tensor, through: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of x, its gradient ``through`` elsewhere added; of weight and bias, (2, C)."""
    parameters = weight.new_empty(2, x.shape[-1])
    grad_x, _ = launch_backward(grad, x, weight, None, stats, through, parameters)
    return grad_x, parameters


@layer_norm_backward.register_fake
def _(
    grad: Tensor, x: Tensor, weight: Tensor, stats: Tensor, through: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(2, x.shape[-1])


def launch_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stats: Tensor,
    through: Tensor | None,
    parameters: Tensor,
    others: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gradient of x, and the forward's result again if ``bias`` is given; fills ``parameters``.

    These are the sums for weight and bias and, where it is given, of the columns of ``others``
    (R, C), rows of any stride: a pass over them of its own would cost twice as much.
    """
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    normed = None if bias is None else torch.empty_like(grad_x)
    if x.numel() == 0:
        parameters.zero_()
        return grad_x, normed
    rows, grad_rows, channels = rows_of(x), rows_of(grad), x.shape[-1]
    block_c = triton.next_power_of_2(channels)
    launch = tile("layer_norm_backward", architecture(x.device), shape(rows))
    block_r = max(1, launch.pop("ELEMENTS") // block_c)
    programs = min(launch.pop("PROGRAMS"), triton.cdiv(rows.num_rows, block_r))
    partial = torch.empty(programs, parameters.numel(), dtype=torch.float32, device=x.device)
    layer_norm_backward_kernel[(programs,)](
        grad_rows.tensor,
        rows.tensor,
        weight.contiguous(),
        None if bias is None else bias.contiguous(),
        stats,
        None if through is None else through.contiguous(),
        grad_x,
        normed,
        others,
        partial,
        rows.num_rows,
        0 if others is None else others.stride(0),
        geometry(grad_rows),
        geometry(rows),
        C=channels,
        GRAD_ROW_DIMS=grad_rows.num_dims,
        ROW_DIMS=rows.num_dims,
        PROGRAMS=programs,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        **launch,
    )
    sum_rows(partial, parameters.dtype, parameters)
    return grad_x, normed


def _save_for_layer_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _layer_norm_gradients(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
    grad_x, parameters = torch.ops.scalefold.layer_norm_backward(grad, *ctx.saved_tensors)
    return grad_x, parameters[0], parameters[1], None


_layer_norm.register_autograd(_layer_norm_gradients, setup_context=_save_for_layer_norm)
