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

from scalefold_kernels.outer_product import chained, materialised
from scalefold_kernels.outer_product.launch import sum_parts, total, write_masked

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def outer_product_mean(
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    mask_BSI: Tensor,
    mask_BSJ: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_BIJZ: Tensor,
) -> Tensor:
    """``z`` plus: sum over sequences of a_si (x) b_sj, projected, divided by their number.

    Parameters
    ----------
    a_BSIC, b_BSJC : Tensor
        Projections.
    mask_BSI, mask_BSJ : Tensor
        Of each of them.
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
    operands = a_BSIC, b_BSJC, mask_BSI, mask_BSJ, count_BIJ, weight, bias, z_BIJZ
    return _outer_product_mean(*operands)[0]


@torch.library.custom_op("scalefold::outer_product_mean", mutates_args=())
def _outer_product_mean(
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    mask_BSI: Tensor,
    mask_BSJ: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_BIJZ: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result; and what backward wants: both operands masked, and one thing more.

    The chained way: a as [b, i, c, s]. Else, if it is not too large: the outer product.
    """
    arguments = a_BSIC, b_BSJC, mask_BSI, mask_BSJ, count_BIJ, weight, bias, z_BIJZ
    _check(*arguments)
    out, a, b, kept = _results(*arguments)
    weight, bias = weight.contiguous(), bias.contiguous()
    is_chained = _is_chained(a, weight)
    for sample in range(a.shape[0]):
        turned = kept[sample] if is_chained else None
        write_masked(a_BSIC[sample], mask_BSI[sample], a[sample], turned)
        write_masked(b_BSJC[sample], mask_BSJ[sample], b[sample])
        others = b[sample], count_BIJ[sample], weight, bias, z_BIJZ[sample], out[sample]
        if is_chained:
            chained.forward(kept[sample], *others)
        else:
            materialised.forward(a[sample], *others, _outer(kept, sample))
    return out, a, b, kept


@_outer_product_mean.register_fake
def _results(
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    mask_BSI: Tensor,
    mask_BSJ: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_BIJZ: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, num_seq, size_i, channels = a_BSIC.shape
    size_j = b_BSJC.shape[2]
    new = a_BSIC.new_empty
    out, a, b = new(batch, size_i, size_j, weight.shape[0]), new(a_BSIC.shape), new(b_BSJC.shape)
    if _is_chained(a_BSIC, weight):
        return out, a, b, new(batch, size_i, channels, num_seq)
    if materialised.fits(size_i, size_j, channels):
        return out, a, b, new(batch, size_i, channels, size_j, channels)
    return out, a, b, new(0)


@torch.library.custom_op("scalefold::outer_product_mean_backward", mutates_args=())
def _outer_product_mean_backward(
    grad_BIJZ: Tensor,
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    kept: Tensor,
    mask_BSI: Tensor,
    mask_BSJ: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of both operands in one tensor (see `_apart`), of weight and bias."""
    arguments = a_BSIC, b_BSJC, kept, mask_BSI, mask_BSJ, count_BIJ, weight
    grad_operands, grad_weight, _ = _gradients(grad_BIJZ, *arguments)
    grad_a, grad_b = _apart(grad_operands, a_BSIC, b_BSJC)
    weight = weight.contiguous()
    weight_parts, bias_sums = [], []
    for sample in range(grad_BIJZ.shape[0]):
        others = (
            b_BSJC[sample],
            mask_BSI[sample],
            mask_BSJ[sample],
            count_BIJ[sample],
            weight,
            grad_a[sample],
            grad_b[sample],
        )
        grad, a = grad_BIJZ[sample], a_BSIC[sample]
        if _is_chained(a_BSIC, weight):
            parts, bias_sum = chained.backward(grad, a, kept[sample], *others)
        else:
            parts, bias_sum = materialised.backward(grad, a, *others, _outer(kept, sample))
        weight_parts.append(parts)
        bias_sums.append(bias_sum)
    channels = b_BSJC.shape[-1]
    parts = weight_parts[0] if len(weight_parts) == 1 else torch.cat(weight_parts)
    grad_CDZ = grad_weight.unflatten(1, (channels, channels)).permute(1, 2, 0)
    sum_parts(parts, grad_CDZ)
    return grad_operands, grad_weight, total(bias_sums).to(weight.dtype)


@_outer_product_mean_backward.register_fake
def _gradients(
    grad_BIJZ: Tensor,
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    kept: Tensor,
    mask_BSI: Tensor,
    mask_BSJ: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        a_BSIC.new_empty(a_BSIC.numel() + b_BSJC.numel()),
        weight.new_empty(weight.shape),
        weight.new_empty(weight.shape[0]),
    )


def _apart(operands: Tensor, a_BSIC: Tensor, b_BSJC: Tensor) -> tuple[Tensor, Tensor]:
    """Both operands out of one tensor; side by side, if their shapes are the same.

    So the projection that made them takes their gradients as they are.
    """
    if a_BSIC.shape == b_BSJC.shape:
        channels = a_BSIC.shape[-1]
        packed = operands.view(*a_BSIC.shape[:-1], 2 * channels)
        return packed[..., :channels], packed[..., channels:]
    a, b = operands.split([a_BSIC.numel(), b_BSJC.numel()])
    return a.view(a_BSIC.shape), b.view(b_BSJC.shape)


def _outer(kept: Tensor, sample: int) -> Tensor | None:
    """The outer product as a matrix (I C, J D), if it is kept."""
    return kept[sample].flatten(2).flatten(0, 1) if kept.numel() else None


def _is_chained(operand_BSNC: Tensor, weight: Tensor) -> bool:
    _, num_seq, _, channels = operand_BSNC.shape
    return chained.fits(num_seq, channels, weight.shape[0])


def _check(
    a_BSIC: Tensor,
    b_BSJC: Tensor,
    mask_BSI: Tensor,
    mask_BSJ: Tensor,
    count_BIJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_BIJZ: Tensor,
) -> None:
    batch, num_seq, size_i, channels = a_BSIC.shape
    size_j, size_z = b_BSJC.shape[2], weight.shape[0]
    for name, tensor, wanted in (
        ("b", b_BSJC, (batch, num_seq, size_j, channels)),
        ("mask of a", mask_BSI, (batch, num_seq, size_i)),
        ("mask of b", mask_BSJ, (batch, num_seq, size_j)),
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


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    _, _, mask_BSI, mask_BSJ, count_BIJ, weight, _, _ = inputs
    _, a_BSIC, b_BSJC, kept = output
    ctx.save_for_backward(a_BSIC, b_BSJC, kept, mask_BSI, mask_BSJ, count_BIJ, weight)


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: what is made again for backward is given out once
    operands, grad_weight, grad_bias = _outer_product_mean_backward(grad, *saved)
    a_BSIC, b_BSJC, *_ = saved
    grad_a, grad_b = _apart(operands, a_BSIC, b_BSJC)
    return grad_a, grad_b, None, None, None, grad_weight, grad_bias, grad


_outer_product_mean.register_autograd(_backward, setup_context=_save)
