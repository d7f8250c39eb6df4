"""``scalefold::layer_norm`` and ``scalefold::normed_projection``: launches and registration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.norm.kernel import (
    layer_norm_backward_kernel,
    layer_norm_forward_kernel,
    projection_backward_input_kernel,
    projection_backward_weight_kernel,
    projection_forward_kernel,
    sum_partials_kernel,
)
from scalefold_kernels.packing import join, joined, split
from scalefold_kernels.rows import Rows, rows_of
from scalefold_kernels.tiles import architecture, tile

EPS = 1e-5

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_CHANNELS = 8192
"""A program holds whole rows."""

MAX_FUSED_CHANNELS = 256
"""Wider rows do not leave room on the chip for the projection's tiles: two kernels serve them."""


def _shape(rows: Rows, **more: int) -> dict[str, int | str]:
    x = rows.tensor
    dtype = str(x.dtype).removeprefix("torch.")
    return {"rows": rows.num_rows, "C": x.shape[-1], **more, "dtype": dtype}


def _geometry(rows: Rows) -> tuple[int, ...]:
    return (*rows.sizes, *rows.strides)


def _check(x: Tensor, weight: Tensor, bias: Tensor) -> None:
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


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


@torch.library.custom_op("scalefold::layer_norm", mutates_args=())
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise the last dimension of a tensor of any strides; the result is contiguous."""
    _check(x, weight, bias)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    rows, channels = rows_of(x), x.shape[-1]
    block_c = triton.next_power_of_2(channels)
    launch = tile("layer_norm_forward", architecture(x.device), _shape(rows))
    block_r = max(1, launch.pop("ELEMENTS") // block_c)
    layer_norm_forward_kernel[(triton.cdiv(rows.num_rows, block_r),)](
        rows.tensor,
        weight.contiguous(),
        bias.contiguous(),
        out,
        rows.num_rows,
        *_geometry(rows),
        C=channels,
        EPS=EPS,
        ROW_DIMS=rows.num_dims,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        **launch,
    )
    return out


@layer_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("scalefold::layer_norm_backward", mutates_args=())
def layer_norm_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of weight and bias as (2, C); the sums have a fixed order."""
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    channels = x.shape[-1]
    if x.numel() == 0:
        return grad_x, weight.new_zeros(2, channels)
    rows, grad_rows = rows_of(x), rows_of(grad)
    block_c = triton.next_power_of_2(channels)
    launch = tile("layer_norm_backward", architecture(x.device), _shape(rows))
    block_r = max(1, launch.pop("ELEMENTS") // block_c)
    programs = min(launch.pop("PROGRAMS"), triton.cdiv(rows.num_rows, block_r))
    partial = torch.empty(2, programs, channels, dtype=torch.float32, device=x.device)
    layer_norm_backward_kernel[(programs,)](
        grad_rows.tensor,
        rows.tensor,
        weight.contiguous(),
        grad_x,
        partial,
        rows.num_rows,
        *_geometry(grad_rows),
        *_geometry(rows),
        C=channels,
        EPS=EPS,
        GRAD_ROW_DIMS=grad_rows.num_dims,
        ROW_DIMS=rows.num_dims,
        PROGRAMS=programs,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        **launch,
    )
    return grad_x, _sum_partials(partial, weight.dtype)


@layer_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(2, x.shape[-1])


def _save_for_layer_norm(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _layer_norm_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = ctx.saved_tensors
    grad_x, parameters = torch.ops.scalefold.layer_norm_backward(grad, x, weight)
    return grad_x, parameters[0], parameters[1]


layer_norm.register_autograd(_layer_norm_gradients, setup_context=_save_for_layer_norm)


def _sum_partials(partial: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum (batch, partials, width) over the middle, in a fixed order."""
    batch, num_partials, width = partial.shape
    out = torch.empty(batch, width, dtype=dtype, device=partial.device)
    launch = tile(
        "sum_partials",
        architecture(partial.device),
        {"partials": num_partials, "width": batch * width},
    )
    sum_partials_kernel[(triton.cdiv(width, launch["BLOCK_W"]), batch)](
        partial, out, num_partials, width, **launch
    )
    return out


@torch.library.custom_op("scalefold::normed_projection", mutates_args=())
def _normed_projection(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    biased: Sequence[bool],
) -> Tensor:
    """All projections of the normalised input, side by side in the last dimension.

    ``biases`` are those that there are; ``biased`` says of each weight whether it has one.
    """
    _check(x, norm_weight, norm_bias)
    weight, (bias, first_biased) = join(weights, 0), _joined_biases(weights, biases, biased)
    out = torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    rows, channels, outputs = rows_of(x), x.shape[-1], weight.shape[0]
    launch = tile("projection_forward", architecture(x.device), _shape(rows, P=outputs))
    projection_forward_kernel[(triton.cdiv(rows.num_rows, launch["BLOCK_R"]),)](
        rows.tensor,
        norm_weight.contiguous(),
        norm_bias.contiguous(),
        weight.contiguous(),
        bias,
        out,
        rows.num_rows,
        outputs,
        first_biased,
        *_geometry(rows),
        C=channels,
        EPS=EPS,
        ROW_DIMS=rows.num_dims,
        PRECISION=_precision(x),
        BLOCK_C=_block_c(channels),
        **launch,
    )
    return out


@_normed_projection.register_fake
def _(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    biased: Sequence[bool],
) -> Tensor:
    return x.new_empty(*x.shape[:-1], sum(weight.shape[0] for weight in weights))


def _joined_biases(
    weights: Sequence[Tensor], biases: Sequence[Tensor], biased: Sequence[bool]
) -> tuple[Tensor | None, int]:
    """Biases as one vector, and the output that it begins with: those before it have none."""
    if not biases:
        return None, 0
    skipped, remaining = list(biased).index(True), iter(biases)
    parts = [
        next(remaining) if has else weight.new_zeros(weight.shape[0])
        for weight, has in zip(weights[skipped:], biased[skipped:], strict=True)
    ]
    return join(parts, 0).contiguous(), sum(weight.shape[0] for weight in weights[:skipped])


def _block_c(channels: int) -> int:
    """Tile of a matrix product's inner dimension: a power of two, at least 16."""
    return max(16, triton.next_power_of_2(channels))


@torch.library.custom_op("scalefold::normed_projection_backward", mutates_args=())
def normed_projection_backward(
    grad: Tensor, x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of the norm's weight and bias (2, C), and of the projections.

    The last are one vector: the weights' (P, C), then the biases' (P,).
    """
    weight = join(weights, 0).contiguous()
    outputs, channels = weight.shape
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return (
            grad_x,
            norm_weight.new_zeros(2, channels),
            weight.new_zeros(outputs * (channels + 1)),
        )
    grad, rows, norm_weight = grad.contiguous(), rows_of(x), norm_weight.contiguous()
    arch, shape = architecture(x.device), _shape(rows, P=outputs)
    common = {
        "C": channels,
        "EPS": EPS,
        "ROW_DIMS": rows.num_dims,
        "PRECISION": _precision(x),
        "BLOCK_C": _block_c(channels),
    }

    launch = tile("projection_backward_input", arch, shape)
    programs = min(launch.pop("PROGRAMS"), triton.cdiv(rows.num_rows, launch["BLOCK_R"]))
    partial = torch.empty(2, programs, channels, dtype=torch.float32, device=x.device)
    projection_backward_input_kernel[(programs,)](
        grad,
        rows.tensor,
        norm_weight,
        weight,
        grad_x,
        partial,
        rows.num_rows,
        outputs,
        *_geometry(rows),
        PROGRAMS=programs,
        **common,
        **launch,
    )
    grad_norm = _sum_partials(partial, norm_weight.dtype)

    launch = tile("projection_backward_weight", arch, shape)
    blocks = triton.cdiv(outputs, launch["BLOCK_P"])
    splits = triton.cdiv(launch.pop("PROGRAMS"), blocks)
    splits = min(splits, triton.cdiv(rows.num_rows, launch["BLOCK_R"]))
    partial = torch.empty(1, splits, outputs * (channels + 1), dtype=torch.float32, device=x.device)
    projection_backward_weight_kernel[(blocks, splits)](
        grad,
        rows.tensor,
        norm_weight,
        norm_bias.contiguous(),
        partial,
        rows.num_rows,
        outputs,
        *_geometry(rows),
        SPLITS=splits,
        **common,
        **launch,
    )
    return grad_x, grad_norm, _sum_partials(partial, weight.dtype)[0]


@normed_projection_backward.register_fake
def _(
    grad: Tensor, x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    outputs = sum(weight.shape[0] for weight in weights)
    channels = x.shape[-1]
    return (
        x.new_empty(x.shape),
        norm_weight.new_empty(2, channels),
        weights[0].new_empty(outputs * (channels + 1)),
    )


def _save_for_projection(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, norm_weight, norm_bias, weights, _, ctx.biased = inputs
    ctx.save_for_backward(x, norm_weight, norm_bias, *weights)


def _projection_gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, norm_weight, norm_bias, *weights = ctx.saved_tensors
    grad_x, grad_norm, flat = torch.ops.scalefold.normed_projection_backward(
        grad, x, norm_weight, norm_bias, weights
    )
    sizes = [weight.shape[0] for weight in weights]
    num_weights = sum(sizes) * x.shape[-1]
    grad_weights = flat[:num_weights].view(sum(sizes), -1).split(sizes)
    grad_biases = flat[num_weights:].split(sizes)
    grad_biases = [g for g, has in zip(grad_biases, ctx.biased, strict=True) if has]
    return grad_x, grad_norm[0], grad_norm[1], list(grad_weights), grad_biases, None


_normed_projection.register_autograd(_projection_gradients, setup_context=_save_for_projection)


def normed_projection(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:
    """Layer normalisation, then several linear maps of its one result, as one kernel.

    The results are slices of one tensor (..., P). Gradients that are such slices of one tensor too
    are taken as they are; others are first copied together. Rows wider than `MAX_FUSED_CHANNELS`
    go through `layer_norm` and one matrix product of the library.
    """
    present, biased = [b for b in biases if b is not None], [b is not None for b in biases]
    if x.shape[-1] <= MAX_FUSED_CHANNELS:
        packed = torch.ops.scalefold.normed_projection(
            x, norm_weight, norm_bias, list(weights), present, biased
        )
        return split(packed, [weight.shape[0] for weight in weights])
    normed = torch.ops.scalefold.layer_norm(x, norm_weight, norm_bias)
    if not present:
        packed = functional.linear(normed, joined(weights, 0))
        return split(packed, [weight.shape[0] for weight in weights])
    return tuple(functional.linear(normed, w, b) for w, b in zip(weights, biases, strict=True))
