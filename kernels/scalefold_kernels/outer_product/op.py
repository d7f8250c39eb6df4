"""``scalefold::outer_product_mean``: registration, and the choice between two ways.

With few sequences both products are one kernel and the outer product stays on the chip
(`chained`), also in backward; with many it is written (`materialised`) and, if it is not too large,
kept for backward.

Legend: B samples, S sequences, I/J residues, C hidden channels, Z channels of the pair
representation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.outer_product import chained
from scalefold_kernels.outer_product.launch import sum_parts
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
    operands = a_BSIC, b_BSJC, count_BIJ, weight, bias, z_BIJZ
    return _outer_product_mean(*operands)[0]


@torch.library.custom_op("scalefold::outer_product_mean", mutates_args=())
def _outer_product_mean(
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_BIJZ: Tensor,
) -> tuple[Tensor, Tensor]:
    """The result; and the outer product for backward, if it is made and not too large."""
    arguments = a_BSIC, b_BSJC, count_BIJ, weight, bias, z_BIJZ
    _check(*arguments)
    out, outer = _results(*arguments)
    a_BICS, b_BJCS = _sequences_last(a_BSIC), _sequences_last(b_BSJC)
    weight, bias = weight.contiguous(), bias.contiguous()
    for sample in range(len(out)):
        others = count_BIJ[sample], weight, bias, z_BIJZ[sample], out[sample]
        if _is_chained(a_BSIC, weight):
            chained.forward(a_BICS[sample], b_BJCS[sample], *others)
        else:
            materialised.forward(a_BICS[sample], b_BJCS[sample], *others, _outer(outer, sample))
    return out, outer


@_outer_product_mean.register_fake
def _results(
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_BIJZ: Tensor,
) -> tuple[Tensor, Tensor]:
    batch, _, size_i, channels = a_BSIC.shape
    size_j = b_BSJC.shape[2]
    out = a_BSIC.new_empty(batch, size_i, size_j, weight.shape[0])
    if _is_chained(a_BSIC, weight) or not materialised.fits(size_i, size_j, channels):
        return out, a_BSIC.new_empty(0)
    return out, a_BSIC.new_empty(batch, size_i, channels, size_j, channels)


@torch.library.custom_op("scalefold::outer_product_mean_backward", mutates_args=())
def _outer_product_mean_backward(
    grad_BIJZ: Tensor,
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    outer: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of both operands behind each other (see `_apart`), of weight and bias."""
    operands = a_BSIC.new_empty(a_BSIC.numel() + b_BSJC.numel())
    grad_a, grad_b = _apart(operands, a_BSIC, b_BSJC)
    a_BICS, b_BJCS = _sequences_last(a_BSIC), _sequences_last(b_BSJC)
    whole_weight = weight.contiguous()
    weight_parts, bias_parts = [], []
    for sample in range(len(grad_BIJZ)):
        arguments = (
            grad_BIJZ[sample],
            a_BICS[sample],
            b_BJCS[sample],
            count_BIJ[sample],
            whole_weight,
            grad_a[sample],
            grad_b[sample],
        )
        if _is_chained(a_BSIC, weight):
            parts = chained.backward(*arguments)
        else:
            parts = materialised.backward(*arguments, _outer(outer, sample))
        weight_parts.append(parts[0])
        bias_parts.append(parts[1])
    return operands, sum_parts(weight_parts, weight.dtype), sum_parts(bias_parts, bias.dtype)


@_outer_product_mean_backward.register_fake
def _(
    grad_BIJZ: Tensor,
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    outer: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        a_BSIC.new_empty(a_BSIC.numel() + b_BSJC.numel()),
        weight.new_empty(weight.shape),
        bias.new_empty(bias.shape),
    )


def _sequences_last(operand_BSNC: Tensor) -> Tensor:
    """As (B, N, C, S), contiguous: how `outer_product_operands` leaves it."""
    return operand_BSNC.permute(0, 2, 3, 1).contiguous()


def _apart(operands: Tensor, a_BSIC: Tensor, b_BSJC: Tensor) -> tuple[Tensor, Tensor]:
    """Both operands' gradients out of one tensor, as (B, N, C, S)."""
    both = operands.split([a_BSIC.numel(), b_BSJC.numel()])
    batch, num_seq, _, channels = a_BSIC.shape
    a, b = (part.view(batch, -1, channels, num_seq) for part in both)
    return a, b


def _outer(outer: Tensor, sample: int) -> Tensor | None:
    """The outer product as a matrix (I C, J D), if it is kept."""
    return outer[sample].flatten(2).flatten(0, 1) if outer.numel() else None


def _is_chained(operand_BSNC: Tensor, weight: Tensor) -> bool:
    _, num_seq, _, channels = operand_BSNC.shape
    return chained.fits(num_seq, channels, weight.shape[0])


def _check(
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_BIJZ: Tensor,
) -> None:
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


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    a_BSIC, b_BSJC, count_BIJ, weight, bias, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(a_BSIC, b_BSJC, output[1], count_BIJ, weight, bias)


def _backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: what is made again for backward is given out once
    operands, grad_weight, grad_bias = _outer_product_mean_backward(grad, *saved)
    a, b = (part.permute(0, 3, 1, 2) for part in _apart(operands, *saved[:2]))
    return a, b, None, grad_weight, grad_bias, grad


_outer_product_mean.register_autograd(_backward, setup_context=_save)
