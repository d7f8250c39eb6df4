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
    projection_backward_kernel,
    projection_forward_kernel,
)
from scalefold_kernels.packing import join
from scalefold_kernels.rows import Rows, rows_of
from scalefold_kernels.sums import column_sums, sum_rows
from scalefold_kernels.tiles import architecture, tile

EPS = 1e-5

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_CHANNELS = 8192
"""A program holds whole rows."""

MAX_FUSED_CHANNELS = 128
"""Wider rows leave too little room on the chip: LayerNorm and the library's product are faster."""

MAX_NARROW_OUTPUTS = 64
"""Up to here all gradients of a projection are made in one pass over its input."""


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


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise the last dimension of a tensor of any strides; the result is contiguous."""
    out: Tensor = torch.ops.scalefold.layer_norm(x, weight, bias)[0]
    return out


@torch.library.custom_op("scalefold::layer_norm", mutates_args=())
def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The result, and each row's mean and 1 / standard deviation, (2, R) float32."""
    _check(x, weight, bias)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    stats = _new_stats(x)
    if x.numel() == 0:
        return out, stats
    rows, channels = rows_of(x), x.shape[-1]
    block_c = triton.next_power_of_2(channels)
    launch = tile("layer_norm_forward", architecture(x.device), _shape(rows))
    block_r = max(1, launch.pop("ELEMENTS") // block_c)
    layer_norm_forward_kernel[(triton.cdiv(rows.num_rows, block_r),)](
        rows.tensor,
        weight.contiguous(),
        bias.contiguous(),
        out,
        stats,
        rows.num_rows,
        *_geometry(rows),
        C=channels,
        EPS=EPS,
        ROW_DIMS=rows.num_dims,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        **launch,
    )
    return out, stats


@_layer_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), _new_stats(x)


def _new_stats(x: Tensor) -> Tensor:
    return x.new_empty(2, x.shape[:-1].numel(), dtype=torch.float32)


@torch.library.custom_op("scalefold::layer_norm_backward", mutates_args=())
def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, stats: Tensor, through: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of x, its gradient ``through`` elsewhere added; of weight and bias, (2, C)."""
    parameters = weight.new_empty(2, x.shape[-1])
    grad_x, _ = _launch_backward(grad, x, weight, None, stats, through, parameters)
    return grad_x, parameters


@layer_norm_backward.register_fake
def _(
    grad: Tensor, x: Tensor, weight: Tensor, stats: Tensor, through: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(2, x.shape[-1])


def _launch_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stats: Tensor,
    through: Tensor | None,
    parameters: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Gradient of x, and the forward's result again if ``bias`` is given; fills ``parameters``."""
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    normed = None if bias is None else torch.empty_like(grad_x)
    if x.numel() == 0:
        parameters.zero_()
        return grad_x, normed
    rows, grad_rows, channels = rows_of(x), rows_of(grad), x.shape[-1]
    block_c = triton.next_power_of_2(channels)
    launch = tile("layer_norm_backward", architecture(x.device), _shape(rows))
    block_r = max(1, launch.pop("ELEMENTS") // block_c)
    programs = min(launch.pop("PROGRAMS"), triton.cdiv(rows.num_rows, block_r))
    partial = torch.empty(programs, 2 * channels, dtype=torch.float32, device=x.device)
    layer_norm_backward_kernel[(programs,)](
        grad_rows.tensor,
        rows.tensor,
        weight.contiguous(),
        None if bias is None else bias.contiguous(),
        stats,
        None if through is None else through.contiguous(),
        grad_x,
        normed,
        partial,
        rows.num_rows,
        *_geometry(grad_rows),
        *_geometry(rows),
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


def _save_for_layer_norm(
    ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]
) -> None:
    x, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _layer_norm_gradients(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, Tensor, Tensor]:
    grad_x, parameters = torch.ops.scalefold.layer_norm_backward(grad, *ctx.saved_tensors)
    return grad_x, parameters[0], parameters[1]


_layer_norm.register_autograd(_layer_norm_gradients, setup_context=_save_for_layer_norm)


@torch.library.custom_op("scalefold::normed_projection", mutates_args=())
def _normed_projection(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    biased: Sequence[bool],
) -> tuple[Tensor, Tensor]:
    """All projections of the normalised input, side by side in the last dimension; statistics.

    ``biases`` are those that there are; ``biased`` says of each weight whether it has one.
    """
    _check(x, norm_weight, norm_bias)
    weight, (bias, first_biased) = join(weights, 0), _joined_biases(weights, biases, biased)
    if not _fused(x):
        normed, stats = _layer_norm(x, norm_weight, norm_bias)
        return functional.linear(normed, weight, _whole_bias(bias, first_biased)), stats
    out = torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)
    stats = _new_stats(x)
    if out.numel() == 0:
        return out, stats
    rows, outputs = rows_of(x), weight.shape[0]
    launch = tile("projection_forward", architecture(x.device), _shape(rows, P=outputs))
    blocks = triton.cdiv(outputs, launch["CHUNKS"] * launch["BLOCK_P"])
    programs = triton.cdiv(launch.pop("PROGRAMS"), blocks)
    programs = min(programs, triton.cdiv(rows.num_rows, launch["BLOCK_R"]))
    projection_forward_kernel[(blocks, programs)](
        rows.tensor,
        norm_weight.contiguous(),
        norm_bias.contiguous(),
        weight.contiguous(),
        bias,
        out,
        stats,
        rows.num_rows,
        outputs,
        first_biased,
        *_geometry(rows),
        EPS=EPS,
        PROGRAMS=programs,
        **_constants(rows),
        **launch,
    )
    return out, stats


@_normed_projection.register_fake
def _(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    biased: Sequence[bool],
) -> tuple[Tensor, Tensor]:
    return x.new_empty(*x.shape[:-1], sum(w.shape[0] for w in weights)), _new_stats(x)


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


def _whole_bias(bias: Tensor | None, first_biased: int) -> Tensor | None:
    """The bias of all outputs: zeros before ``first_biased``."""
    return bias if bias is None or not first_biased else functional.pad(bias, (first_biased, 0))


def _fused(x: Tensor) -> bool:
    """Whether the projection is a kernel of ours: by measurement, see docs/kernels/norm.md.

    float32 has no fast matrix product in Triton; the library's follows torch's own settings.
    """
    return x.shape[-1] <= MAX_FUSED_CHANNELS and (x.dtype != torch.float32 or not x.is_cuda)


def _constants(rows: Rows) -> dict[str, Any]:
    x = rows.tensor
    return {
        "C": x.shape[-1],
        "ROW_DIMS": rows.num_dims,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        # A matrix product's inner dimension is at least 16.
        "BLOCK_C": max(16, triton.next_power_of_2(x.shape[-1])),
    }


@torch.library.custom_op("scalefold::normed_projection_backward", mutates_args=())
def normed_projection_backward(
    grad: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    stats: Tensor,
    through: Tensor | None,
    first_biased: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of x, ``through`` (its gradient from elsewhere) added; of all parameters, a vector.

    These are the norm's weight and bias (C each), the projections' weights (P, C) and biases (P,),
    of which those before ``first_biased`` are not computed.
    """
    weight = join(weights, 0).contiguous()
    outputs, channels = weight.shape
    parameters = weight.new_empty(2 * channels + outputs * (channels + 1))
    if x.numel() == 0:
        return x.new_empty(x.shape), parameters.zero_()
    grad = grad.contiguous()
    if _fused(x) and outputs <= MAX_NARROW_OUTPUTS:
        arguments = norm_weight, norm_bias, weight, stats, through
        return _narrow_backward(grad, x, *arguments, parameters), parameters
    grad_normed = grad @ weight
    grad_x, normed = _launch_backward(
        grad_normed, x, norm_weight, norm_bias, stats, through, parameters[: 2 * channels]
    )
    assert normed is not None
    grad, normed = grad.view(-1, outputs), normed.view(-1, channels)
    end = 2 * channels + outputs * channels
    torch.mm(grad.t(), normed, out=parameters[2 * channels : end].view(outputs, channels))
    if first_biased < outputs:
        column_sums(grad[:, first_biased:], parameters[end + first_biased :])
    return grad_x, parameters


@normed_projection_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    stats: Tensor,
    through: Tensor | None,
    first_biased: int,
) -> tuple[Tensor, Tensor]:
    outputs, channels = sum(weight.shape[0] for weight in weights), x.shape[-1]
    size = 2 * channels + outputs * (channels + 1)
    return x.new_empty(x.shape), weights[0].new_empty(size)


def _narrow_backward(
    grad: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight: Tensor,
    stats: Tensor,
    through: Tensor | None,
    parameters: Tensor,
) -> Tensor:
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, outputs = rows_of(x), weight.shape[0]
    launch = tile("projection_backward", architecture(x.device), _shape(rows, P=outputs))
    programs = min(launch.pop("PROGRAMS"), triton.cdiv(rows.num_rows, launch["BLOCK_R"]))
    partial = torch.empty(programs, parameters.numel(), dtype=torch.float32, device=x.device)
    projection_backward_kernel[(programs,)](
        grad,
        rows.tensor,
        norm_weight.contiguous(),
        norm_bias.contiguous(),
        weight,
        stats,
        None if through is None else through.contiguous(),
        grad_x,
        partial,
        rows.num_rows,
        outputs,
        *_geometry(rows),
        PROGRAMS=programs,
        BLOCK_P=max(16, triton.next_power_of_2(outputs)),
        **_constants(rows),
        **launch,
    )
    sum_rows(partial, parameters.dtype, parameters)
    return grad_x


class _NormedProjection(torch.autograd.Function):
    """A function, and no autograd of the operator: one of the results is x itself."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        biased: list[bool],
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        weights, biases = parameters[: len(biased)], parameters[len(biased) :]
        packed, stats = torch.ops.scalefold.normed_projection(
            x, norm_weight, norm_bias, weights, biases, biased
        )
        ctx.set_materialize_grads(False)
        ctx.biased = biased
        ctx.save_for_backward(x, norm_weight, norm_bias, stats, *weights)
        return *packed.split([weight.shape[0] for weight in weights], -1), x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, norm_weight, norm_bias, stats, *weights = ctx.saved_tensors
        *grad_parts, through = grads
        if all(part is None for part in grad_parts):
            return through, *[None] * (3 + len(weights) + sum(ctx.biased))
        sizes = [weight.shape[0] for weight in weights]
        skipped = ctx.biased.index(True) if any(ctx.biased) else len(sizes)
        parts = [
            x.new_zeros(*x.shape[:-1], size) if part is None else part
            for part, size in zip(grad_parts, sizes, strict=True)
        ]
        grad_x, parameters = torch.ops.scalefold.normed_projection_backward(
            join(parts, -1),
            x,
            norm_weight,
            norm_bias,
            weights,
            stats,
            through,
            sum(sizes[:skipped]),
        )
        channels, outputs = x.shape[-1], sum(sizes)
        grad_norm_weight, grad_norm_bias, grad_weight, grad_bias = parameters.split(
            [channels, channels, outputs * channels, outputs]
        )
        grad_weights = grad_weight.view(outputs, channels).split(sizes)
        grad_biases = (
            part for part, has in zip(grad_bias.split(sizes), ctx.biased, strict=True) if has
        )
        return grad_x, grad_norm_weight, grad_norm_bias, None, *grad_weights, *grad_biases


def normed_projection(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:
    """Layer normalisation, then several linear maps of its one result; and ``x`` itself, last.

    The maps' results are slices of one tensor (..., P), the product of one kernel or one call of
    the library; x and its statistics are kept for backward. Gradients that are such slices of one
    tensor too are taken as they are, others are first copied together. The gradient of the ``x``
    that is returned is added in the kernel that makes the rest of x's gradient.
    """
    given = [bias for bias in biases if bias is not None]
    biased = [bias is not None for bias in biases]
    return _NormedProjection.apply(x, norm_weight, norm_bias, biased, *weights, *given)
