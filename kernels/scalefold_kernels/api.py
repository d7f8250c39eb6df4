"""The layers as functions of plain tensors: what other models call.

All tensors of a call are on one GPU and of one type, bfloat16, float16 or float32, but for masks
and counts. Each function can be differentiated in all tensors but the mask. Algorithm numbers are
those of AlphaFold2's supplement (Jumper et al., Nature 596, 2021).

Every function raises `ModuleNotFoundError` without Triton, and `ValueError` for tensors that are
not on a GPU or whose shapes do not fit. With ``TRITON_INTERPRET=1``, set before Triton is imported,
CPU tensors are let through to Triton's interpreter. It is for tests: Triton 3.6's knows no
arithmetic of bfloat16, and some kernels need numpy below 2.4 in it.

Legend: B samples; N, I, J residues; R rows, each an attention of its own; Q, K queries and keys;
H heads; D channels of a head; S sequences; Z, M channels of the pair and of the MSA representation;
C other channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from scalefold_kernels import WITHOUT_TRITON
from scalefold_kernels.checks import check_shapes


def triangle_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Triangle self-attention (core of Alg. 13, 14), in the layout that cuEquivariance takes.

    Drop-in replacement for ``cuequivariance_torch.triangle_attention(q, k, v, bias, mask, scale)``.
    Tensors of any strides are taken without a copy if D is contiguous.

    Parameters
    ----------
    q : Tensor, shape (B, N, H, Q, D)
    k, v : Tensor, shape (B, N, H, K, D)
    bias : Tensor, shape (B, 1, H, Q, K)
        Added to the logits of all N rows.
    mask : Tensor, shape (B, N, 1, 1, K), optional
        Not 0, or True, for keys that take part. A row without any such key attends to all alike.
    scale : float, optional
        What products of queries and keys are multiplied by. Default: 1 / sqrt(D).

    Returns
    -------
    Tensor, shape (B, N, H, Q, D)
        For inputs without B, a tensor without B.
    """
    if q.ndim == 4:
        mask = None if mask is None else mask[None]
        return triangle_attention(q[None], k[None], v[None], bias[None], mask, scale)[0]
    shapes = (len(q), 1, *q.shape[2:4], k.shape[3]), (*q.shape[:2], 1, 1, k.shape[3])
    named = zip(("bias", "mask"), (bias, mask), shapes, strict=True)
    check_shapes(f"triangle_attention of q {tuple(q.shape)}", named)
    mask = None if mask is None else mask[:, :, 0, 0]
    heads_last = (x.transpose(2, 3) for x in (q, k, v))
    return attention(*heads_last, bias=bias[:, 0], mask=mask, scale=scale).transpose(2, 3)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    gate: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attention with pair bias, mask and gate (core of Alg. 7, 8, 13, 14).

    Parameters
    ----------
    q : Tensor, shape (B, R, Q, H, D)
        As a linear map leaves it. For attention along columns, give transposed views.
    k, v : Tensor, shape (B, R, K, H, D)
    bias : Tensor, shape (B, H, Q, K), optional
        Added to the logits of all rows.
    mask : Tensor, shape (B, R, K) or (B, 1, K), optional
        Not 0, or True, for keys that take part.
    gate : Tensor, shape (B, R, Q, H, D), optional
        The result is multiplied by its sigmoid.
    scale : float, optional
        What products of queries and keys are multiplied by. Default: 1 / sqrt(D).

    Returns
    -------
    Tensor, shape (B, R, Q, H, D)
        Rows and queries are in memory in the order of those of ``q``.
    """
    op = _kernels("attention", "attention", q)
    if mask is None:
        mask = q.new_ones(len(q), 1, k.shape[2])
    return op(q, k, v, gate, mask.to(q.dtype), bias, 1.0, scale)


def triangle_multiplication(
    x: Tensor,
    direction: Literal["outgoing", "incoming"] = "outgoing",
    mask: Tensor | None = None,
    *,
    norm_in_weight: Tensor,
    norm_in_bias: Tensor,
    p_in_weight: Tensor,
    p_in_bias: Tensor | None = None,
    g_in_weight: Tensor,
    g_in_bias: Tensor | None = None,
    norm_out_weight: Tensor,
    norm_out_bias: Tensor,
    p_out_weight: Tensor,
    p_out_bias: Tensor | None = None,
    g_out_weight: Tensor,
    g_out_bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Triangle multiplicative update (Alg. 11, 12), with the arguments that cuEquivariance takes.

    Drop-in replacement for ``cuequivariance_torch.triangle_multiplicative_update``. Both LayerNorms
    have an epsilon of 1e-5.

    Parameters
    ----------
    x : Tensor, shape (B, I, J, Z)
        The pair representation.
    direction : {"outgoing", "incoming"}
        Whether the product is the sum over k of a_ik b_jk or of a_ki b_kj.
    mask : Tensor, shape (B, I, J), optional
        0 for pairs that take no part.
    norm_in_weight, norm_in_bias : Tensor, shape (Z,)
    p_in_weight, g_in_weight : Tensor, shape (2 C, Z)
        Maps to the operands and to their gates: first those of a, then those of b.
    p_in_bias, g_in_bias : Tensor, shape (2 C,), optional
    norm_out_weight, norm_out_bias : Tensor, shape (C,)
    p_out_weight : Tensor, shape (Z, C)
    g_out_weight : Tensor, shape (Z, Z)
    p_out_bias, g_out_bias : Tensor, shape (Z,), optional
    residual : Tensor, shape (B, I, J, Z), optional
        Added to the result, at no cost in time: mostly ``x``.

    Returns
    -------
    Tensor, shape (B, I, J, Z)
    """
    if direction not in ("outgoing", "incoming"):
        raise ValueError(
            f"triangle_multiplication: direction is {direction!r}, must be 'outgoing' or 'incoming'"
        )
    project = _kernels("triangle", "triangle_projection", x)
    multiply = _kernels("triangle", f"triangle_product_{direction}", x)
    output = _kernels("triangle", "triangle_output", x)
    (a, b), (a_bias, b_bias) = _halves(p_in_weight, p_in_bias)
    (a_gate, b_gate), (a_gate_bias, b_gate_bias) = _halves(g_in_weight, g_in_bias)
    operands = (a, a_bias, a_gate, a_gate_bias, b, b_bias, b_gate, b_gate_bias)
    gate = (g_out_weight, _bias_of(g_out_weight, g_out_bias))
    mask = x.new_ones(x.shape[:3]) if mask is None else mask.to(x.dtype)
    a_BIJC, b_BIJC, gate_BIJZ, _ = project(x, mask, norm_in_weight, norm_in_bias, *operands, *gate)
    product_BIJC = multiply(a_BIJC, b_BIJC)
    residual = torch.zeros_like(x) if residual is None else residual
    p_out = (p_out_weight, _bias_of(p_out_weight, p_out_bias))
    return output(residual, product_BIJC, gate_BIJZ, norm_out_weight, norm_out_bias, *p_out, None)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm of the last dimension, epsilon 1e-5; (..., C), (C,), (C,) -> (..., C)."""
    return _kernels("norm", "layer_norm", x)(x, weight, bias)


def layer_norm_projection(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
) -> list[Tensor]:
    """LayerNorm, then several linear maps of its one result (lines 1 to 4 of Alg. 7, for one).

    Parameters
    ----------
    x : Tensor, shape (..., C)
    norm_weight, norm_bias : Tensor, shape (C,)
    weights : sequence of Tensor, shape (C_out, C)
        C_out may differ between them.
    biases : sequence of Tensor, shape (C_out,), or None, optional

    Returns
    -------
    list of Tensor, shape (..., C_out)
        Slices of one tensor.
    """
    project = _kernels("normed_projection", "normed_projection", x)
    biases = [None] * len(weights) if biases is None else biases
    *projections, _ = project(x, norm_weight, norm_bias, list(weights), list(biases))
    return projections


def outer_product_mean(
    m: Tensor,
    mask: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    a_weight: Tensor,
    a_bias: Tensor,
    b_weight: Tensor,
    b_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    *,
    residual: Tensor | None = None,
) -> Tensor:
    """Outer product mean, LayerNorm included (Alg. 10).

    The mean is over the sequences that two residues share, of which 1e-3 is added to the number.
    The bias of the result is divided by it too, as in AlphaFold2's code.

    Parameters
    ----------
    m : Tensor, shape (B, S, N, M)
        The MSA representation.
    mask : Tensor, shape (B, S, N)
        1 for residues that are there, else 0.
    norm_weight, norm_bias : Tensor, shape (M,)
    a_weight, b_weight : Tensor, shape (C, M)
    a_bias, b_bias : Tensor, shape (C,)
    out_weight : Tensor, shape (Z, C * C)
    out_bias : Tensor, shape (Z,)
    residual : Tensor, shape (B, N, N, Z), optional
        Added to the result, at no cost in time: mostly the pair representation.

    Returns
    -------
    Tensor, shape (B, N, N, Z)
    """
    make_operands = _kernels("outer_product_operands", "outer_product_operands", m)
    multiply = _kernels("outer_product", "outer_product_mean", m)
    maps = (a_weight, a_bias, b_weight, b_bias)
    a, b, _ = make_operands(m, mask.to(m.dtype), norm_weight, norm_bias, *maps)
    present = mask.float()  # bfloat16 cannot hold counts above 256
    count = present.mT @ present
    if residual is None:
        residual = m.new_zeros(*count.shape, len(out_weight))
    return multiply(a, b, count, out_weight, out_bias, residual)


def transition(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
) -> Tensor:
    """``x`` plus its transition: LayerNorm, linear, ReLU, linear (Alg. 9, 15).

    Parameters
    ----------
    x : Tensor, shape (..., C)
    norm_weight, norm_bias, down_bias : Tensor, shape (C,)
    up_weight : Tensor, shape (C_hidden, C)
    up_bias : Tensor, shape (C_hidden,)
    down_weight : Tensor, shape (C, C_hidden)

    Returns
    -------
    Tensor, shape (..., C)
    """
    op = _kernels("transition", "transition", x)
    return op(x, norm_weight, norm_bias, up_weight, up_bias, down_weight, down_bias)


def residual_linear(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x`` plus a linear map of ``h``: the end of an attention (last line of Alg. 7, for one).

    Parameters
    ----------
    x : Tensor, shape (B, ..., C), two to four dimensions
    h : Tensor, shape (B, ..., K)
    weight : Tensor, shape (C, K)
    bias : Tensor, shape (C,)

    Returns
    -------
    Tensor, shape (B, ..., C)
    """
    return _kernels("linear", "residual_linear", x)(x, h, weight, bias, None)


def _kernels(folder: str, name: str, x: Tensor) -> Any:
    """An op, if it can run on this tensor."""
    if find_spec("triton") is None:
        raise ModuleNotFoundError(WITHOUT_TRITON, name="triton")
    if x.device.type != "cuda" and not import_module("triton").knobs.runtime.interpret:
        raise ValueError(
            f"{name}: the tensors are on {x.device.type}, and the kernels run on GPUs: move them "
            "there, or set TRITON_INTERPRET=1 before Triton is imported"
        )
    return getattr(import_module(f"scalefold_kernels.ops.{folder}"), name)


def _halves(weight: Tensor, bias: Tensor | None) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A map to two results as two maps; zeros where there is no bias."""
    return weight.chunk(2), _bias_of(weight, bias).chunk(2)


def _bias_of(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight.new_zeros(len(weight)) if bias is None else bias
