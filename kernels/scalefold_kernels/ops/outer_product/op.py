"""``scalefold::outer_product_mean``: contract and registration.

With few sequences both products are one kernel and the outer product stays on the chip, also in
backward (`hopper`, `triton`). With many it is written and, if it is not too large, kept for
backward (`materialised`).

Legend: B samples, S sequences, I/J residues, C hidden channels, Z channels of the pair
representation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.backends import HOPPER, TRITON, Backend, Backends
from scalefold_kernels.ops.outer_product import arguments
from scalefold_kernels.ops.outer_product.arguments import (
    Factors,
    Mean,
    Operands,
    Sizes,
    check,
    sum_gradients,
)
from scalefold_kernels.ops.outer_product.triton import mean_gradient
from scalefold_kernels.packing import unpack

_BACKENDS = Backends(
    "outer_product_mean", __package__, HOPPER, TRITON, Backend("materialised", "triton")
)


def outer_product_mean(
    a_BSIC: Tensor, b_BSJC: Tensor, count_BIJ: Tensor, weight: Tensor, bias: Tensor, z_BIJZ: Tensor
) -> Tensor:
    """``z`` plus: sum over sequences of a_si (x) b_sj, projected, divided by their number.

    Operands are 0 where they are masked. They are not copied if memory has them as (B, N, C, S).
    ``count``: of sequences in which both residues are real; ``weight`` (Z, C * C), ``bias`` (Z,).
    """
    return _outer_product_mean([a_BSIC, b_BSJC, count_BIJ, weight, bias], z_BIJZ)[0]


@torch.library.custom_op("scalefold::outer_product_mean", mutates_args=())
def _outer_product_mean(operands: list[Tensor], z_BIJZ: Tensor) -> tuple[Tensor, Tensor]:
    """The result; and the outer product for backward, if it is made and not too large."""
    given = Operands(*operands)
    check(given, z_BIJZ)
    out, outer = _results(operands, z_BIJZ)
    if not out.numel():
        return out, outer
    a_BICS, b_BJCS = _sequences_last(given.a), _sequences_last(given.b)
    weight, bias = given.weight.contiguous(), given.bias.contiguous()
    sizes = Sizes.of(b_BJCS[0], weight)
    backend = _BACKENDS.choose("forward", out.device, sizes, a_BICS, b_BJCS, weight, z_BIJZ)
    for sample in range(len(out)):
        mean = Mean(given.number[sample], bias, z_BIJZ[sample], out[sample])
        factors = Factors(a_BICS[sample], b_BJCS[sample], weight)
        backend.forward(factors, mean, _outer(outer, sample))
    return out, outer


@_outer_product_mean.register_fake
def _results(operands: list[Tensor], z_BIJZ: Tensor) -> tuple[Tensor, Tensor]:
    given = Operands(*operands)
    batch, num_seq, size_i, channels = given.a.shape
    size_j, new = given.b.shape[2], given.a.new_empty
    sizes = Sizes(num_seq, size_j, channels, len(given.weight))
    elements = size_i * size_j * channels**2
    kept = sizes.too_large_for_chip() is not None and elements <= arguments.MAX_ELEMENTS
    return new(z_BIJZ.shape), new(batch, size_i, channels, size_j, channels) if kept else new(0)


@torch.library.custom_op("scalefold::outer_product_mean_backward", mutates_args=())
def _outer_product_mean_backward(
    grad_BIJZ: Tensor, outer: Tensor, operands: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of both operands behind each other (see `_apart`), of weight and bias."""
    given = Operands(*operands)
    both, grad_weight, grad_bias = _gradients(grad_BIJZ, outer, operands)
    if not grad_BIJZ.numel():
        return both.zero_(), grad_weight.zero_(), grad_bias.zero_()
    grad_a, grad_b = _apart(both, given)
    a_BICS, b_BJCS = _sequences_last(given.a), _sequences_last(given.b)
    weight = given.weight.contiguous()
    sizes = Sizes.of(b_BJCS[0], weight)
    backend = _BACKENDS.choose("backward", grad_BIJZ.device, sizes, a_BICS, b_BJCS, weight)
    samples, bias_parts = [], []
    for sample in range(len(grad_BIJZ)):
        grad, of_bias = mean_gradient(grad_BIJZ[sample], given.number[sample])
        factors = Factors(a_BICS[sample], b_BJCS[sample], weight)
        grads = grad_a[sample], grad_b[sample]
        samples.append(backend.backward(grad, factors, grads, _outer(outer, sample)))
        bias_parts.append(of_bias)
    sum_gradients(samples, bias_parts, grad_weight, grad_bias)
    return both, grad_weight, grad_bias


@_outer_product_mean_backward.register_fake
def _gradients(
    grad_BIJZ: Tensor, outer: Tensor, operands: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    a_BSIC, b_BSJC, _, weight, bias = operands
    both = a_BSIC.new_empty(a_BSIC.numel() + b_BSJC.numel())
    return both, weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _sequences_last(operand_BSNC: Tensor) -> Tensor:
    """Return the operand as (B, N, C, S), contiguous, as `outer_product_operands` does."""
    return operand_BSNC.permute(0, 2, 3, 1).contiguous()


def _apart(both: Tensor, given: Operands) -> tuple[Tensor, Tensor]:
    """Both operands' gradients out of one tensor, as (B, N, C, S)."""
    apart = unpack(both, [operand.permute(0, 2, 3, 1) for operand in (given.a, given.b)])
    return apart[0], apart[1]


def _outer(outer: Tensor, sample: int) -> Tensor | None:
    """The outer product as a matrix (I C, J D), if it is kept."""
    return outer[sample].flatten(2).flatten(0, 1) if outer.numel() else None


def _save(ctx: Any, inputs: tuple[list[Tensor], Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], *inputs[0])


def _backward(ctx: Any, grad: Tensor, _: None) -> tuple[list[Tensor | None], Tensor]:
    outer, *operands = ctx.saved_tensors  # once: what is made again for backward is given out once
    both, grad_weight, grad_bias = _outer_product_mean_backward(grad, outer, operands)
    parts = _apart(both, Operands(*operands))
    a, b = (part.permute(0, 3, 1, 2) for part in parts)
    return [a, b, None, grad_weight, grad_bias], grad


_outer_product_mean.register_autograd(_backward, setup_context=_save)
