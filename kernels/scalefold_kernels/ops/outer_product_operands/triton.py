"""Operands of the outer product mean: layer normalisation, two projections, mask.

Forward is one kernel. Backward is two: m's gradient with sums over its rows, then all parameters'
gradients from the sums.

Legend: S sequences, N residues, M channels of the MSA representation, C hidden channels. Results
are (N, C, S): the product over sequences reads them fastest with the sequences last.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels import dot
from scalefold_kernels.checks import check_batch
from scalefold_kernels.loads import load_vector
from scalefold_kernels.ops.norm.triton import standardise, standardise_backward
from scalefold_kernels.ops.norm.weights import finish
from scalefold_kernels.tiles import config_for

MAX_CHANNELS = 256
MAX_HIDDEN_CHANNELS = 32
"""What a CTA has room for."""


def why_not(function: str, m: Tensor, weight: Tensor) -> str | None:
    """Why the kernels do not take this representation and a weight (C, M)."""
    hidden, channels = weight.shape
    if m.is_cuda and m.dtype == torch.float32:
        return "Triton has no fast matrix product of float32"
    if channels > MAX_CHANNELS or hidden > MAX_HIDDEN_CHANNELS:
        most = MAX_CHANNELS, MAX_HIDDEN_CHANNELS
        return f"takes {most} channels and hidden channels at most, found {(channels, hidden)}"
    return None


class Parameters(NamedTuple):
    """Parameters of the normalisation (M,), weights (C, M) and biases (C,); all contiguous."""

    norm_weight: Tensor
    norm_bias: Tensor
    weight_a: Tensor
    bias_a: Tensor
    weight_b: Tensor
    bias_b: Tensor

    @classmethod
    def of(cls, *parameters: Tensor) -> Parameters:
        """Make all parameters contiguous."""
        return cls(*(parameter.contiguous() for parameter in parameters))


@triton.jit
def load_weights(
    weight_a_ptr, weight_b_ptr, size_c,
    M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The weights below each other, (2 BLOCK_C, BLOCK_M)."""
    p, column = tl.arange(0, 2 * BLOCK_C), tl.arange(0, BLOCK_M)
    which, c = p // BLOCK_C, p % BLOCK_C
    at = c[:, None] * M + column[None, :]
    inside = (c < size_c)[:, None] & (column < M)[None, :]
    weight_a = tl.load(weight_a_ptr + at, mask=inside & (which == 0)[:, None], other=0.0)
    weight_b = tl.load(weight_b_ptr + at, mask=inside & (which == 1)[:, None], other=0.0)
    return weight_a + weight_b


@triton.jit
def outer_product_operands_forward_kernel(
    m_ptr, mask_ptr, norm_weight_ptr, norm_bias_ptr, weight_a_ptr, weight_b_ptr, bias_a_ptr,
    bias_b_ptr, out_ptr, size_s, size_n, size_c, strides, mask_strides,
    M: tl.constexpr, PRECISION: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """``out[0,n,c,s] = mask[s,n] (layer_norm(m[s,n]) @ weight_a.T + bias_a)[c]``; 1: b likewise.

    A CTA has some sequences of one residue of one sample. ``strides``: of m.
    """
    n, sample = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    s = (tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)).to(tl.int64)
    column = tl.arange(0, BLOCK_M)
    inside_s, inside_m = s < size_s, column < M
    at = m_ptr + sample * strides[0] + n * strides[2] + s[:, None] * strides[1]
    inside = inside_s[:, None] & inside_m[None, :]
    x = tl.load(at + column[None, :] * strides[3], mask=inside, other=0.0)
    x_hat, _, _ = standardise(x.to(tl.float32), inside_m, M, BLOCK_M)
    norm_weight = load_vector(norm_weight_ptr, column, M)
    norm_bias = load_vector(norm_bias_ptr, column, M)
    normed = (x_hat * norm_weight[None, :] + norm_bias[None, :]).to(x.dtype)
    mask_at = mask_ptr + sample * mask_strides[0] + s * mask_strides[1] + n * mask_strides[2]
    mask = tl.load(mask_at, mask=inside_s, other=0.0).to(tl.float32)
    weight = load_weights(weight_a_ptr, weight_b_ptr, size_c, M, BLOCK_C, BLOCK_M)
    p = tl.arange(0, 2 * BLOCK_C)
    which, c = p // BLOCK_C, p % BLOCK_C
    bias = tl.load(bias_a_ptr + c, mask=(which == 0) & (c < size_c), other=0.0)
    bias += tl.load(bias_b_ptr + c, mask=(which == 1) & (c < size_c), other=0.0)
    out = tl.dot(normed, weight.T, input_precision=PRECISION) + bias.to(tl.float32)[None, :]
    out = (out * mask[:, None]).to(x.dtype).T
    out_at = ((which * tl.num_programs(2) + sample) * size_n + n) * size_c + c
    inside = (c < size_c)[:, None] & inside_s[None, :]
    tl.store(out_ptr + out_at[:, None] * size_s + s[None, :], out, mask=inside)


@triton.jit
def place(block, size_s, size_n, BLOCK_S: tl.constexpr):
    """Sample, residue and sequences of a block."""
    blocks_s = tl.cdiv(size_s, BLOCK_S)
    s = ((block % blocks_s) * BLOCK_S + tl.arange(0, BLOCK_S)).to(tl.int64)
    rest = block // blocks_s
    return (rest // size_n).to(tl.int64), (rest % size_n).to(tl.int64), s


@triton.jit
def load_block(
    block, grad_ptr, m_ptr, mask_ptr, through_ptr, sizes, strides, mask_strides,
    M: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """What backward reads of a block of sequences of one residue; 0 behind the last."""
    num_samples, size_s, size_n, size_c = sizes
    column, p = tl.arange(0, BLOCK_M), tl.arange(0, 2 * BLOCK_C)
    which, c = p // BLOCK_C, p % BLOCK_C
    sample, n, s = place(block, size_s, size_n, BLOCK_S)
    inside_s = (s < size_s) & (sample < num_samples)
    inside = inside_s[:, None] & (column < M)[None, :]
    at = m_ptr + sample * strides[0] + n * strides[2] + s[:, None] * strides[1]
    x = tl.load(at + column[None, :] * strides[3], mask=inside, other=0.0)
    grad_at = ((which * num_samples + sample) * size_n + n) * size_c + c
    inside_g = (c < size_c)[:, None] & inside_s[None, :]
    grad = tl.load(grad_ptr + grad_at[:, None] * size_s + s[None, :], mask=inside_g, other=0.0)
    mask_at = mask_ptr + sample * mask_strides[0] + s * mask_strides[1] + n * mask_strides[2]
    mask = tl.load(mask_at, mask=inside_s, other=0.0).to(x.dtype)
    through = x
    if through_ptr is not None:
        out_at = ((sample * size_s + s) * size_n + n)[:, None] * M + column[None, :]
        through = tl.load(through_ptr + out_at, mask=inside, other=0.0)
    return x, grad, mask, through


@triton.jit
def outer_product_operands_backward_kernel(
    grad_ptr, m_ptr, mask_ptr, norm_weight_ptr, weight_a_ptr, weight_b_ptr, through_ptr, grad_m_ptr,
    partial_ptr, partial_bias_ptr, sizes, strides, mask_strides,
    M: tl.constexpr, PRECISION: tl.constexpr, CTAS: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Gradient of m, ``through`` (its gradient from elsewhere, contiguous) added; partial sums.

    ``partial`` (CTAS, 2 C, M) and ``partial_bias`` (CTAS, 2 C): for a, then for b, ``sum grad
    x_hat`` and ``sum grad``, grad masked. All parameters' gradients follow from these. ``sizes``:
    of samples, S, N, C; ``strides`` of m. A block is read while the one before is worked on.
    """
    num_samples, size_s, size_n, size_c = sizes
    column, p = tl.arange(0, BLOCK_M), tl.arange(0, 2 * BLOCK_C)
    which, c = p // BLOCK_C, p % BLOCK_C
    inside_m, inside_c = column < M, c < size_c
    norm_weight = load_vector(norm_weight_ptr, column, M)
    weight = load_weights(weight_a_ptr, weight_b_ptr, size_c, M, BLOCK_C, BLOCK_M)
    sums = tl.zeros((2 * BLOCK_C, BLOCK_M), tl.float32)
    grad_sums = tl.zeros((2 * BLOCK_C,), tl.float32)
    num_blocks = num_samples * size_n * tl.cdiv(size_s, BLOCK_S)
    first = tl.program_id(0)
    x, grad, mask, through = load_block(
        first, grad_ptr, m_ptr, mask_ptr, through_ptr, sizes, strides, mask_strides,
        M, BLOCK_S, BLOCK_C, BLOCK_M,
    )  # fmt: skip
    for block in range(first, num_blocks, CTAS):
        next_x, next_grad, next_mask, next_through = load_block(
            block + CTAS, grad_ptr, m_ptr, mask_ptr, through_ptr, sizes, strides, mask_strides,
            M, BLOCK_S, BLOCK_C, BLOCK_M,
        )  # fmt: skip
        grad *= mask[None, :]
        x_hat, _, rstd = standardise(x.to(tl.float32), inside_m, M, BLOCK_M)
        x_hat = x_hat.to(x.dtype)  # half the registers until the end
        sums = tl.dot(grad, x_hat, sums, input_precision=PRECISION)
        grad_sums += tl.sum(grad.to(tl.float32), 1)
        grad_m = tl.dot(grad.T, weight, input_precision=PRECISION) * norm_weight[None, :]
        grad_m = standardise_backward(grad_m, x_hat.to(tl.float32), rstd, M)
        if through_ptr is not None:
            grad_m += through.to(tl.float32)
        sample, n, s = place(block, size_s, size_n, BLOCK_S)
        out_at = ((sample * size_s + s) * size_n + n)[:, None] * M + column[None, :]
        inside = (s < size_s)[:, None] & inside_m[None, :]
        tl.store(grad_m_ptr + out_at, grad_m, mask=inside)
        x, grad, mask, through = next_x, next_grad, next_mask, next_through
    row = (tl.program_id(0) * 2 + which).to(tl.int64) * size_c + c
    partial_at = partial_ptr + row[:, None] * M + column[None, :]
    tl.store(partial_at, sums, mask=inside_c[:, None] & inside_m[None, :])
    tl.store(partial_bias_ptr + row, grad_sums, mask=inside_c)


def forward(m_BSNM: Tensor, mask_BSN: Tensor, parameters: Parameters, out_2BNCS: Tensor) -> None:
    """Fill both operands."""
    batch, num_seq, num_res, _ = m_BSNM.shape
    norm_weight, norm_bias, weight_a, bias_a, weight_b, bias_b = parameters
    config, sizes = _config("forward", m_BSNM, weight_a)
    check_batch("outer_product_operands", m_BSNM)
    outer_product_operands_forward_kernel[(num_res, triton.cdiv(num_seq, sizes["BLOCK_S"]), batch)](
        m_BSNM, mask_BSN, norm_weight, norm_bias, weight_a, weight_b, bias_a, bias_b, out_2BNCS,
        num_seq, num_res, len(weight_a), m_BSNM.stride(), mask_BSN.stride(),
        **sizes, **config,
    )  # fmt: skip


def backward(
    grad_2BNCS: Tensor,
    m_BSNM: Tensor,
    mask_BSN: Tensor,
    parameters: Parameters,
    through: Tensor | None,
    grad_m: Tensor,
    flat_grad: Tensor,
) -> None:
    """Fill the gradient of m, and all parameters' in the order of `finish`."""
    batch, num_seq, num_res, channels = m_BSNM.shape
    norm_weight, norm_bias, weight_a, _, weight_b, _ = parameters
    hidden = len(weight_a)
    config, sizes = _config("backward", m_BSNM, weight_a)
    num_blocks = batch * num_res * triton.cdiv(num_seq, sizes["BLOCK_S"])
    ctas = min(config.pop("CTAS"), num_blocks)
    partial = m_BSNM.new_empty(ctas, 2 * hidden, channels, dtype=torch.float32)
    partial_bias = partial.new_empty(ctas, 2 * hidden)
    outer_product_operands_backward_kernel[(ctas,)](
        grad_2BNCS, m_BSNM, mask_BSN, norm_weight, weight_a, weight_b, through, grad_m, partial,
        partial_bias, (batch, num_seq, num_res, hidden), m_BSNM.stride(), mask_BSN.stride(),
        CTAS=ctas, **sizes, **config,
    )  # fmt: skip
    finish(partial, partial_bias, norm_weight, norm_bias, [weight_a, weight_b], flat_grad)


def _config(
    direction: str, m: Tensor, weight: Tensor
) -> tuple[dict[str, int], dict[str, int | str]]:
    """How a kernel is launched, and its sizes."""
    hidden, channels = weight.shape
    config = config_for(f"outer_product_operands_{direction}", m, C=hidden, M=channels)
    block_m = dot.block(channels)
    return config, {
        "M": channels,
        "PRECISION": dot.precision(m.dtype),
        "BLOCK_S": max(16, config.pop("ELEMENTS") // block_m),
        "BLOCK_C": dot.block(hidden),
        "BLOCK_M": block_m,
    }
