"""``scalefold::outer_product_mean``: contract and registration.

On Hopper GPUs, few sequences' outer product stays on the chip, also in backward (`hopper`). Else it
is in memory, some rows of residues at a time (`triton`). Only that of many sequences is kept for
backward, if it is not too large: with few, it costs little to make it again.

Legend: B samples, S sequences, I/J residues, C hidden channels, Z channels of the pair
representation.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from scalefold_kernels.backends import HOPPER, TRITON, Backends
from scalefold_kernels.checks import check_shapes, check_types
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.packing import join, unpack
from scalefold_kernels.sums import sum_several
from scalefold_kernels.tiles import Config, config_for

EPS = 1e-3
"""Added to the number of sequences that two residues share."""

FEW_SEQUENCES = 128
"""With more, the outer product is kept for backward."""

MAX_ELEMENTS = 1 << 27
"""Elements of the outer product in memory at a time: 256 MiB in bfloat16."""

_BACKENDS = Backends("outer_product_mean", __package__, HOPPER, TRITON)


class Operands(NamedTuple):
    """Operands of `outer_product_mean`, in its order; backward needs no others."""

    a: Tensor  # (B, S, I, C)
    b: Tensor  # (B, S, J, C)
    number: Tensor  # (B, I, J)
    weight: Tensor  # (Z, C * C)
    bias: Tensor  # (Z,)


class Factors(NamedTuple):
    """Contiguous factors of one sample's outer product, and the weight that projects it."""

    a: Tensor  # (I, C, S)
    b: Tensor  # (J, C, S)
    weight: Tensor  # (Z, C * C)

    def config(self, kernel: str) -> Config:
        """Configuration of a kernel for these sizes, their type and GPU."""
        size_j, channels, num_seq = self.b.shape
        return config_for(kernel, self.b, S=num_seq, N=size_j, C=channels, Z=len(self.weight))


class Mean(NamedTuple):
    """Other inputs of one sample's mean, and its result."""

    number: Tensor  # of sequences that two residues share, (I, J)
    bias: Tensor  # (Z,)
    z: Tensor  # (I, J, Z)
    out: Tensor  # (I, J, Z)


class Gradients(NamedTuple):
    """Partial sums of one sample's gradients, float32, their parts along the first dimension.

    ``operands``: parts of their gradients, and where the sums belong; empty if they are there.
    """

    bias: Tensor  # (parts, Z)
    weight: Tensor  # (parts, Z, C * C)
    operands: list[tuple[Tensor, Tensor]]


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
    """The result; and the outer product, if it is kept for backward."""
    given = Operands(*operands)
    _check(given, z_BIJZ)
    out, outer = _results(operands, z_BIJZ)
    if not out.numel():
        return out, outer
    a_BICS, b_BJCS = _sequences_last(given.a), _sequences_last(given.b)
    weight, bias = given.weight.contiguous(), given.bias.contiguous()
    backend = _BACKENDS.choose("forward", out.device, a_BICS, b_BJCS, weight, z_BIJZ)
    for sample in range(len(out)):
        mean = Mean(given.number[sample], bias, z_BIJZ[sample], out[sample])
        factors = Factors(a_BICS[sample], b_BJCS[sample], weight)
        backend.forward(factors, mean, _outer(outer, sample))
    return out, outer


@_outer_product_mean.register_fake
def _results(operands: list[Tensor], z_BIJZ: Tensor) -> tuple[Tensor, Tensor]:
    a_BSIC, b_BSJC, *_ = operands
    batch, num_seq, size_i, channels = a_BSIC.shape
    shape = size_i, channels, b_BSJC.shape[2], channels
    kept = num_seq > FEW_SEQUENCES and prod(shape) <= MAX_ELEMENTS
    return a_BSIC.new_empty(z_BIJZ.shape), a_BSIC.new_empty((batch, *shape) if kept else 0)


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
    backend = _BACKENDS.choose("backward", grad_BIJZ.device, a_BICS, b_BJCS, weight)
    samples: list[Gradients] = []
    for sample in range(len(grad_BIJZ)):
        mean = grad_BIJZ[sample], given.number[sample]
        factors = Factors(a_BICS[sample], b_BJCS[sample], weight)
        grads = grad_a[sample], grad_b[sample]
        samples.append(backend.backward(*mean, factors, grads, _outer(outer, sample)))
    _sum(samples, grad_weight, grad_bias)
    return both, grad_weight, grad_bias


@_outer_product_mean_backward.register_fake
def _gradients(
    grad_BIJZ: Tensor, outer: Tensor, operands: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    a_BSIC, b_BSJC, _, weight, bias = operands
    both = a_BSIC.new_empty(a_BSIC.numel() + b_BSJC.numel())
    return both, weight.new_empty(weight.shape), bias.new_empty(bias.shape)


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


def split_evenly(ctas: int, per_sm: int, length: int, device: torch.device) -> tuple[int, int]:
    """Into how many parts sums of ``length`` terms by so many CTAs are split, and a part's length.

    So that the CTAs of all parts fill whole waves of the GPU. No part is empty. Each is written and
    read once more, which counts for a hundredth of a wave.
    """
    slots = per_sm * num_sms(device)
    options = range(1, min(length, 16) + 1)
    num_parts = min(options, key=lambda n: triton.cdiv(ctas * n, slots) / n + 0.01 * n)
    part = triton.cdiv(length, num_parts)
    return triton.cdiv(length, part), part


def _check(given: Operands, z_BIJZ: Tensor) -> None:
    """Raise ValueError where the arguments do not fit each other, or the kernels."""
    a_BSIC, b_BSJC, count_BIJ, weight, bias = given
    batch, num_seq, size_i, channels = a_BSIC.shape
    size_j, size_z = b_BSJC.shape[2], weight.shape[0]
    named = (
        ("b", b_BSJC, (batch, num_seq, size_j, channels)),
        ("count", count_BIJ, (batch, size_i, size_j)),
        ("weight", weight, (size_z, channels * channels)),
        ("bias", bias, (size_z,)),
        ("z", z_BIJZ, (batch, size_i, size_j, size_z)),
    )
    check_shapes(f"outer_product_mean of a {tuple(a_BSIC.shape)}", named)
    check_types("outer_product_mean", (a_BSIC, b_BSJC, weight, bias, z_BIJZ))


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


def _sum(samples: list[Gradients], weight: Tensor, bias: Tensor) -> None:
    """Fill the gradients of weight and bias, and each sample's operands'; in one launch."""
    sums = [  # the longest ones first, since few CTAs have them
        (join([sample.bias for sample in samples], 0), bias),
        (join([sample.weight for sample in samples], 0), weight),
        *(pair for sample in samples for pair in sample.operands),
    ]
    sum_several([parts.flatten(1) for parts, _ in sums], [out for _, out in sums])
