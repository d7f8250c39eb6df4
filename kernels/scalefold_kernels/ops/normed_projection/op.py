"""``scalefold::normed_projection``: layer normalisation and what is made of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.backends import HOPPER, TRITON, Backend, Backends
from scalefold_kernels.ops.norm.op import check_norm, new_stats
from scalefold_kernels.ops.normed_projection.arguments import (
    Gradients,
    Norm,
    Projections,
    Sizes,
    apart,
    check_projections,
)
from scalefold_kernels.packing import join

_BACKENDS = Backends("normed_projection", __package__, HOPPER, TRITON, Backend("library", "triton"))


def normed_projection(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    first_scale: float = 1.0,
    last_scale: float = 1.0,
) -> tuple[Tensor, ...]:
    """Layer normalisation, then several linear maps of its one result; and ``x`` itself, last.

    The maps' results are slices of one tensor (..., D), the product of one kernel or one call of
    the library; x and its statistics are kept for backward. Gradients that are such slices of one
    tensor too are taken as they are, others are first copied together. A last or only map of few
    outputs (a pair bias) has a tensor of its own, outputs before rows in memory, as attention reads
    it; among the others it would spoil the alignment of their rows. It is multiplied by
    ``last_scale`` before it is rounded, as the first map is by ``first_scale``; another last one
    afterwards. The gradient of the ``x`` that is returned is added in the kernel that makes the
    rest of x's gradient.

    Raises ValueError where shapes or types do not fit each other, or there are too many channels.
    """
    check_projections(x, weights, biases)
    given = [bias for bias in biases if bias is not None]
    biased = [bias is not None for bias in biases]
    beside, few = apart(x, weights, biased)
    few_scale = 1.0
    if few is not None:
        few_scale, last_scale = last_scale if beside else first_scale * last_scale, 1.0
    *wide, last, x = _NormedProjection.apply(
        x, norm_weight, norm_bias, biased, first_scale, few_scale, *weights, *given
    )
    return *wide, last if last_scale == 1 else last * last_scale, x


class _NormedProjection(torch.autograd.Function):
    """A function, and no autograd of the operator: one of the results is x itself."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        biased: list[bool],
        first_scale: float,
        few_scale: float,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        weights, biases = parameters[: len(biased)], parameters[len(biased) :]
        packed, few, stats = _normed_projection(
            x, norm_weight, norm_bias, weights, biases, biased, first_scale, few_scale
        )
        ctx.set_materialize_grads(False)
        ctx.biased, ctx.scales = biased, (first_scale, few_scale)
        ctx.save_for_backward(x, norm_weight, norm_bias, stats, *weights)
        beside, alone = apart(x, weights, biased)
        parts = packed.split([weight.shape[0] for weight in beside], -1)
        return *(parts if beside else []), *([] if alone is None else [few.movedim(1, -1)]), x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, norm_weight, norm_bias, stats, *weights = ctx.saved_tensors
        *given, through = grads
        if all(grad is None for grad in given):
            return through, *[None] * (5 + len(weights) + sum(ctx.biased))
        parts = [
            x.new_zeros(*x.shape[:-1], weight.shape[0]) if grad is None else grad
            for grad, weight in zip(given, weights, strict=True)
        ]
        beside, few = apart(x, weights, ctx.biased)
        grad = join(parts[: len(beside)], -1) if beside else None
        grad_few = None if few is None else parts[-1]
        arguments = weights, ctx.biased, *ctx.scales, stats, through
        grad_x, flat_grad = _normed_projection_backward(
            grad, grad_few, x, norm_weight, norm_bias, *arguments
        )
        sizes = Sizes.of(x, weights, ctx.biased)
        gradients, channels = Gradients.of(flat_grad, sizes), sizes.channels
        lengths = [weight.shape[0] for weight in beside]
        skipped = (*ctx.biased, True).index(True)
        norm_weight, norm_bias, *biases = gradients.sums.split(
            [channels, channels, *lengths[skipped:]]
        )
        few_weight = [] if few is None else [gradients.few]
        given_biases = zip(biases, ctx.biased[skipped:], strict=False)
        return (
            grad_x, norm_weight, norm_bias, None, None, None,
            *gradients.weight.split(lengths), *few_weight,
            *(bias for bias, has in given_biases if has),
        )  # fmt: skip


@torch.library.custom_op("scalefold::normed_projection", mutates_args=())
def _normed_projection(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    biased: Sequence[bool],
    first_scale: float,
    few_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Projections side by side; that of few outputs, (B, F, ...); the norm's statistics.

    The first of those side by side is multiplied by ``first_scale`` and the one of few outputs by
    ``few_scale``, before they are rounded.
    ``biases`` are those that there are; ``biased`` says of each weight whether it has one.
    """
    check_norm(x, norm_weight, norm_bias)
    projections = Projections.of(x, weights, biases, biased, first_scale, few_scale)
    out, few, stats = _results(x, projections.sizes)
    if x.numel():
        norm = Norm(norm_weight.contiguous(), norm_bias.contiguous(), stats)
        backend = _BACKENDS.choose("forward", x.device, x, projections)
        backend.forward(x, norm, projections, out, few)
    return out, few, stats


@_normed_projection.register_fake
def _(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, weights, _, biased, *_ = others
    return _results(x, Sizes.of(x, weights, biased))


def _results(x: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what the operator returns."""
    batch, *rows, _ = x.shape
    few = x.new_empty(batch, sizes.few, *rows) if sizes.few else x.new_empty(0)
    return x.new_empty(batch, *rows, sizes.outputs), few, new_stats(x)


@torch.library.custom_op("scalefold::normed_projection_backward", mutates_args=())
def _normed_projection_backward(
    grad: Tensor | None,
    grad_few: Tensor | None,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biased: Sequence[bool],
    first_scale: float,
    few_scale: float,
    stats: Tensor,
    through: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradients of x, ``through`` (its gradient from elsewhere) added; of all parameters, a vector.

    `Gradients` takes the vector apart.
    """
    projections = Projections.of(x, weights, [], biased, first_scale, few_scale)
    flat_grad = x.new_empty(projections.sizes.parameters)
    if x.numel() == 0:
        return x.new_empty(x.shape), flat_grad.zero_()
    norm = Norm(norm_weight.contiguous(), norm_bias.contiguous(), stats)
    through = None if through is None else through.contiguous()
    backend = _BACKENDS.choose("backward", x.device, x, projections)
    gradients = Gradients.of(flat_grad, projections.sizes)
    grad_x = backend.backward(grad, grad_few, x, norm, projections, through, gradients)
    return grad_x, flat_grad


@_normed_projection_backward.register_fake
def _(_grad: Tensor | None, _few: Tensor | None, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    _, _, weights, biased, *_ = others
    return x.new_empty(x.shape), x.new_empty(Sizes.of(x, weights, biased).parameters)
