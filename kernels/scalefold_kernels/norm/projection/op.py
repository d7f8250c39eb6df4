"""``scalefold::normed_projection``: layer normalisation and what is made of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.norm.op import (
    EPS,
    check,
    geometry,
    launch_backward,
    new_stats,
    shape,
)
from scalefold_kernels.norm.projection.kernel import (
    projection_backward_kernel,
    projection_forward_kernel,
)
from scalefold_kernels.packing import join
from scalefold_kernels.rows import Rows, rows_of
from scalefold_kernels.sums import column_sums, sum_rows
from scalefold_kernels.tiles import architecture, tile

MAX_FUSED_CHANNELS = 128
"""Wider rows leave too little room on the chip: LayerNorm and the library's product are faster."""

MAX_NARROW_OUTPUTS = 64
"""Up to here all gradients of a projection are made in one pass over its input."""

MAX_OUTPUTS_ASIDE = 16
"""Up to here a projection beside wide ones has a tensor of its own."""


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
    tensor too are taken as they are, others are first copied together. A last map of few outputs (a
    pair bias after queries, keys, values and gate) has a tensor of its own: it would spoil the
    alignment of the others' rows. The gradient of the ``x`` that is returned is added in the kernel
    that makes the rest of x's gradient.
    """
    given = [bias for bias in biases if bias is not None]
    biased = [bias is not None for bias in biases]
    return _NormedProjection.apply(x, norm_weight, norm_bias, biased, *weights, *given)


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
        packed, aside, stats = torch.ops.scalefold.normed_projection(
            x, norm_weight, norm_bias, weights, biases, biased
        )
        ctx.set_materialize_grads(False)
        ctx.biased = biased
        ctx.save_for_backward(x, norm_weight, norm_bias, stats, *weights)
        beside, few = _beside(weights, biased, x)
        parts = packed.split([weight.shape[0] for weight in beside], -1)
        return *parts, *([] if few is None else [aside]), x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, norm_weight, norm_bias, stats, *weights = ctx.saved_tensors
        *given, through = grads
        if all(grad is None for grad in given):
            return through, *[None] * (3 + len(weights) + sum(ctx.biased))
        parts = [
            x.new_zeros(*x.shape[:-1], weight.shape[0]) if grad is None else grad
            for grad, weight in zip(given, weights, strict=True)
        ]
        beside, few = _beside(weights, ctx.biased, x)
        grad_x, gradients = torch.ops.scalefold.normed_projection_backward(
            join(parts[: len(beside)], -1),
            None if few is None else parts[-1],
            x,
            norm_weight,
            norm_bias,
            weights,
            ctx.biased,
            stats,
            through,
        )
        of_norm, of_few, of_weights, of_biases = _parts(gradients, beside, few)
        sizes = [weight.shape[0] for weight in beside]
        grad_weights = [*of_weights.split(sizes), *([] if few is None else [of_few])]
        grad_biases = (
            part for part, has in zip(of_biases.split(sizes), ctx.biased, strict=False) if has
        )
        return grad_x, *of_norm, None, *grad_weights, *grad_biases


@torch.library.custom_op("scalefold::normed_projection", mutates_args=())
def _normed_projection(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    biased: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Projections of the normalised input side by side; the one of few outputs; statistics.

    ``biases`` are those that there are; ``biased`` says of each weight whether it has one.
    """
    check(x, norm_weight, norm_bias)
    beside, few = _beside(weights, biased, x)
    weight, (bias, first_biased) = join(beside, 0), _joined_biases(beside, biases, biased)
    if not _fused(x):
        normed, stats = torch.ops.scalefold.layer_norm(x, norm_weight, norm_bias)
        out = functional.linear(normed, weight, _whole_bias(bias, first_biased))
        return out, x.new_empty(0), stats
    out, aside, stats = _results(x, beside, few)
    if x.numel() == 0:
        return out, aside, stats
    rows, outputs = rows_of(x), weight.shape[0]
    launch = tile("projection_forward", architecture(x.device), shape(rows, P=outputs))
    blocks = triton.cdiv(outputs, launch["CHUNKS"] * launch["BLOCK_P"])
    programs = triton.cdiv(launch.pop("PROGRAMS"), blocks)
    programs = min(programs, triton.cdiv(rows.num_rows, launch["BLOCK_R"]))
    projection_forward_kernel[(blocks, programs)](
        rows.tensor,
        norm_weight.contiguous(),
        norm_bias.contiguous(),
        weight.contiguous(),
        bias,
        None if few is None else few.contiguous(),
        out,
        None if few is None else aside,
        stats,
        rows.num_rows,
        outputs,
        first_biased,
        aside.shape[-1],
        *geometry(rows),
        EPS=EPS,
        PROGRAMS=programs,
        BLOCK_S=MAX_OUTPUTS_ASIDE,
        **_constants(rows),
        **launch,
    )
    return out, aside, stats


@_normed_projection.register_fake
def _(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    biased: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    return _results(x, *_beside(weights, biased, x))


@torch.library.custom_op("scalefold::normed_projection_backward", mutates_args=())
def normed_projection_backward(
    grad: Tensor,
    grad_aside: Tensor | None,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biased: Sequence[bool],
    stats: Tensor,
    through: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradients of x, ``through`` (its gradient from elsewhere) added; of all parameters, a vector.

    `_parts` takes the vector apart. Of the biases, those before the first that there is are not
    computed.
    """
    beside, few = _beside(weights, biased, x)
    weight = join(beside, 0).contiguous()
    outputs, channels = weight.shape
    parameters = weight.new_empty(_num_parameters(beside, few))
    if x.numel() == 0:
        return x.new_empty(x.shape), parameters.zero_()
    norm = norm_weight, norm_bias
    if _fused(x) and outputs <= MAX_NARROW_OUTPUTS:
        arguments = weight, norm, stats, through, parameters
        return _narrow_backward(grad, None, x, *arguments)[0], parameters
    grad = grad.contiguous()
    grad_normed = grad @ weight
    end = parameters.numel() - outputs * (channels + 1)
    if few is None:
        grad_x, normed = launch_backward(
            grad_normed, x, norm_weight, norm_bias, stats, through, parameters[:end]
        )
    else:
        assert grad_aside is not None
        arguments = few.contiguous(), norm, stats, through, parameters[:end]
        grad_x, normed = _narrow_backward(grad_aside, grad_normed, x, *arguments)
    assert normed is not None
    grad, normed = grad.view(-1, outputs), normed.view(-1, channels)
    _, _, of_weights, of_biases = _parts(parameters, beside, few)
    torch.mm(grad.t(), normed, out=of_weights)
    if any(biased):
        first = sum(w.shape[0] for w in beside[: list(biased).index(True)])
        column_sums(grad[:, first:], of_biases[first:])
    return grad_x, parameters


@normed_projection_backward.register_fake
def _(
    grad: Tensor,
    grad_aside: Tensor | None,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biased: Sequence[bool],
    stats: Tensor,
    through: Tensor | None,
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weights[0].new_empty(_num_parameters(*_beside(weights, biased, x)))


def _narrow_backward(
    grad: Tensor,
    grad_normed: Tensor | None,
    x: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, Tensor],
    stats: Tensor,
    through: Tensor | None,
    parameters: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """All gradients of a projection of few outputs; the normalised rows if others need them."""
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    normed = None if grad_normed is None else torch.empty_like(grad_x)
    rows, grad_rows, outputs = rows_of(x), rows_of(grad), weight.shape[0]
    sizes = shape(rows, P=outputs, others=int(grad_normed is not None))
    launch = tile("projection_backward", architecture(x.device), sizes)
    programs = min(launch.pop("PROGRAMS"), triton.cdiv(rows.num_rows, launch["BLOCK_R"]))
    partial = torch.empty(programs, parameters.numel(), dtype=torch.float32, device=x.device)
    projection_backward_kernel[(programs,)](
        grad_rows.tensor,
        grad_normed,
        rows.tensor,
        *(p.contiguous() for p in norm),
        weight,
        stats,
        None if through is None else through.contiguous(),
        grad_x,
        normed,
        partial,
        rows.num_rows,
        outputs,
        *geometry(grad_rows),
        *geometry(rows),
        GRAD_ROW_DIMS=grad_rows.num_dims,
        PROGRAMS=programs,
        BLOCK_P=max(16, triton.next_power_of_2(outputs)),
        **_constants(rows),
        **launch,
    )
    sum_rows(partial, parameters.dtype, parameters)
    return grad_x, normed


def _beside(
    weights: Sequence[Tensor], biased: Sequence[bool], x: Tensor
) -> tuple[Sequence[Tensor], Tensor | None]:
    """Weights whose results lie side by side; the one whose result lies aside, if there is one."""
    *others, last = weights
    if (
        _fused(x)
        and last.shape[0] <= MAX_OUTPUTS_ASIDE
        and not biased[-1]
        and sum(weight.shape[0] for weight in others) > MAX_NARROW_OUTPUTS
    ):
        return others, last
    return weights, None


def _results(
    x: Tensor, beside: Sequence[Tensor], few: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what the operator returns."""
    rows = x.shape[:-1]
    out = x.new_empty(*rows, sum(weight.shape[0] for weight in beside))
    aside = x.new_empty(0) if few is None else x.new_empty(*rows, few.shape[0])
    return out, aside, new_stats(x)


def _num_parameters(beside: Sequence[Tensor], few: Tensor | None) -> int:
    channels = beside[0].shape[1]
    outputs = sum(weight.shape[0] for weight in beside) + (0 if few is None else few.shape[0])
    return 2 * channels + outputs * (channels + 1)


def _parts(
    gradients: Tensor, beside: Sequence[Tensor], few: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the norm (2, C), the weight aside (S, C), weights (P, C), and biases (P)."""
    channels, outputs = beside[0].shape[1], sum(weight.shape[0] for weight in beside)
    aside = 0 if few is None else few.shape[0]
    sizes = [2 * channels, aside * channels, aside, outputs * channels, outputs]
    of_norm, of_few, _, of_weights, of_biases = gradients.split(sizes)
    return (
        of_norm.view(2, -1),
        of_few.view(aside, channels),
        of_weights.view(outputs, -1),
        of_biases,
    )


def _joined_biases(
    weights: Sequence[Tensor], biases: Sequence[Tensor], biased: Sequence[bool]
) -> tuple[Tensor | None, int]:
    """Biases as one vector, and the output that it begins with: those before it have none."""
    if not biases:
        return None, 0
    skipped, remaining = list(biased).index(True), iter(biases)
    parts = [
        next(remaining) if has else weight.new_zeros(weight.shape[0])
        for weight, has in zip(weights[skipped:], biased[skipped:], strict=False)
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
