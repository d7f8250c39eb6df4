"""``scalefold::outer_product_mean``: registration, and the choice between two ways.

With few sequences both products are one kernel and the outer product stays on the chip
(`chained`), also in backward; with many it is written (`materialised`) and, if it is not too large,
kept for backward.

Legend: B samples, S sequences, I/J residues, C hidden channels, Z channels of the pair
representation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.outer_product import chained
from scalefold_kernels.outer_product.launch import sum_gradients
from scalefold_kernels.outer_product.materialised import launch as materialised

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def outer_product_mean(
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_BIJZ: Tensor,
) -> Tensor:
    """``z`` plus: sum over sequences of a_si (x) b_sj, projected, divided by their number.

    Parameters
    ----------
    a_BSIC, b_BSJC : Tensor
        Operands, 0 where they are masked; taken as they are if they lie as (B, N, C, S).
    count_BIJ : Tensor
        Number of sequences in which both residues are real.
    weight : Tensor, shape (Z, C * C)
    bias : Tensor, shape (Z,)
    z_BIJZ : Tensor
        Pair representation.

    Returns
    -------
    Tensor, shape (B, I, J, Z)
    """
    return _outer_product_mean([a_BSIC, b_BSJC, count_BIJ, weight, bias], z_BIJZ)[0]


class _Operands(NamedTuple):
    """Of `outer_product_mean`, in its order; all that backward wants.

    Attributes
    ----------
    a : Tensor, shape (B, S, I, C)
    b : Tensor, shape (B, S, J, C)
    number : Tensor, shape (B, I, J)
    weight : Tensor, shape (Z, C * C)
    bias : Tensor, shape (Z,)
    """

    a: Tensor
    b: Tensor
    number: Tensor
    weight: Tensor
    bias: Tensor

    def is_chained(self) -> bool:
        """Whether the outer product stays on the chip."""
        _, num_seq, _, channels = self.a.shape
        return chained.fits(num_seq, channels, len(self.weight))


@torch.library.custom_op("scalefold::outer_product_mean", mutates_args=())
def _outer_product_mean(operands: list[Tensor], z_BIJZ: Tensor) -> tuple[Tensor, Tensor]:
    """The result; and the outer product for backward, if it is made and not too large."""
    given = _Operands(*operands)
    _check(given, z_BIJZ)
    out, outer = _results(operands, z_BIJZ)
    if not out.numel():
        return out, outer
    a_BICS, b_BJCS = _sequences_last(given.a), _sequences_last(given.b)
    weight, bias = given.weight.contiguous(), given.bias.contiguous()
    for sample in range(len(out)):
        others = given.number[sample], weight, bias, z_BIJZ[sample], out[sample]
        if given.is_chained():
            chained.forward(a_BICS[sample], b_BJCS[sample], *others)
        else:
            materialised.forward(a_BICS[sample], b_BJCS[sample], *others, _outer(outer, sample))
    return out, outer


@_outer_product_mean.register_fake
def _results(operands: list[Tensor], z_BIJZ: Tensor) -> tuple[Tensor, Tensor]:
    given = _Operands(*operands)
    batch, _, size_i, channels = given.a.shape
    size_j = given.b.shape[2]
    new = given.a.new_empty
    out = new(z_BIJZ.shape)
    if given.is_chained() or not materialised.fits(size_i, size_j, channels):
        return out, new(0)
    return out, new(batch, size_i, channels, size_j, channels)


@torch.library.custom_op("scalefold::outer_product_mean_backward", mutates_args=())
def _outer_product_mean_backward(
    grad_BIJZ: Tensor, outer: Tensor, operands: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of both operands behind each other (see `_apart`), of weight and bias."""
    given = _Operands(*operands)
    both, grad_weight, grad_bias = _gradients(grad_BIJZ, outer, operands)
    if not grad_BIJZ.numel():
        return both.zero_(), grad_weight.zero_(), grad_bias.zero_()
    grad_a, grad_b = _apart(both, given)
    a_BICS, b_BJCS = _sequences_last(given.a), _sequences_last(given.b)
    weight = given.weight.contiguous()
    samples = []
    for sample in range(len(grad_BIJZ)):
        of_sample = (
            grad_BIJZ[sample],
            a_BICS[sample],
            b_BJCS[sample],
            given.number[sample],
            weight,
            grad_a[sample],
            grad_b[sample],
        )
        if given.is_chained():
            samples.append(chained.backward(*of_sample))
        else:
            samples.append(materialised.backward(*of_sample, _outer(outer, sample)))
    sum_gradients(samples, grad_weight, grad_bias)
    return both, grad_weight, grad_bias


@_outer_product_mean_backward.register_fake
def _gradients(
    grad_BIJZ: Tensor, outer: Tensor, operands: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    a_BSIC, b_BSJC, _, weight, bias = operands
    return (
        a_BSIC.new_empty(a_BSIC.numel() + b_BSJC.numel()),
        weight.new_empty(weight.shape),
        bias.new_empty(bias.shape),
    )


def _sequences_last(operand_BSNC: Tensor) -> Tensor:
    """As (B, N, C, S), contiguous: how `outer_product_operands` leaves it."""
    return operand_BSNC.permute(0, 2, 3, 1).contiguous()


def _apart(both: Tensor, given: _Operands) -> tuple[Tensor, Tensor]:
    """Both operands' gradients out of one tensor, as (B, N, C, S)."""
    a, b = both.split([given.a.numel(), given.b.numel()])
    batch, num_seq, size_i, channels = given.a.shape
    size_j = given.b.shape[2]
    return (
        a.view(batch, size_i, channels, num_seq),
        b.view(batch, size_j, channels, num_seq),
    )


def _outer(outer: Tensor, sample: int) -> Tensor | None:
    """The outer product as a matrix (I C, J D), if it is kept."""
    return outer[sample].flatten(2).flatten(0, 1) if outer.numel() else None


def _check(given: _Operands, z_BIJZ: Tensor) -> None:
    a_BSIC, b_BSJC, count_BIJ, weight, bias = given
    batch, num_seq, size_i, channels = a_BSIC.shape
    size_j, size_z = b_BSJC.shape[2], weight.shape[0]
    for name, tensor, wanted in (
        ("b", b_BSJC, (batch, num_seq, size_j, channels)),
        ("count", count_BIJ, (batch, size_i, size_j)),
        ("weight", weight, (size_z, channels * channels)),
        ("bias", bias, (size_z,)),
        ("z", z_BIJZ, (batch, size_i, size_j, size_z)),
    ):
        if tensor.shape != wanted:
            raise ValueError(
                f"outer_product_mean of a {tuple(a_BSIC.shape)}: {name} has shape "
                f"{tuple(tensor.shape)}, must be {wanted}"
            )
    dtypes = {t.dtype for t in (a_BSIC, b_BSJC, weight, bias, z_BIJZ)}
    if len(dtypes) > 1 or a_BSIC.dtype not in DTYPES:
        raise ValueError(
            "outer_product_mean takes float32, bfloat16 or float16, the same for all operands; "
            f"found {sorted(map(str, dtypes))}"
        )


def _save(ctx: Any, inputs: tuple[list[Tensor], Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], *inputs[0])


def _backward(ctx: Any, grad: Tensor, _: None) -> tuple[list[Tensor | None], Tensor]:
    outer, *operands = ctx.saved_tensors  # once: what is made again for backward is given out once
    both, grad_weight, grad_bias = _outer_product_mean_backward(grad, outer, operands)
    parts = _apart(both, _Operands(*operands))
    a, b = (part.permute(0, 3, 1, 2) for part in parts)
    return [a, b, None, grad_weight, grad_bias], grad


_outer_product_mean.register_autograd(_backward, setup_context=_save)
