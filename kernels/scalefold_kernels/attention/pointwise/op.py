"""``scalefold::pointwise_attention``: one query at each position, a few keys there."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from scalefold_kernels.attention.pointwise.kernel import (
    pointwise_attention_backward_kernel,
    pointwise_attention_forward_kernel,
)
from scalefold_kernels.limits import check_batch
from scalefold_kernels.tiles import architecture, tile


@torch.library.custom_op("scalefold::pointwise_attention", mutates_args=())
def pointwise_attention(
    q_BPHC: Tensor, k_BTPHC: Tensor, v_BTPHC: Tensor, mask_BT: Tensor
) -> Tensor:
    """Attention of the query at each position to the keys at it (core of Suppl. Alg. 17).

    Parameters
    ----------
    q_BPHC : Tensor
        Unscaled; any strides (a copy is made of what is not contiguous).
    k_BTPHC, v_BTPHC : Tensor
    mask_BT : Tensor
        1 for keys that take part. Where none does, all do.

    Returns
    -------
    Tensor, shape (B, P, H, C)
    """
    _check(q_BPHC, k_BTPHC, v_BTPHC, mask_BT)
    out = torch.empty(q_BPHC.shape, dtype=q_BPHC.dtype, device=q_BPHC.device)
    inputs = [x.contiguous() for x in (q_BPHC, k_BTPHC, v_BTPHC, mask_BT)]
    if out.numel():
        grid, arguments, constants = _launch("pointwise_attention_forward", q_BPHC, k_BTPHC)
        pointwise_attention_forward_kernel[grid](*inputs, out, *arguments, **constants)
    return out


@pointwise_attention.register_fake
def _(q_BPHC: Tensor, k_BTPHC: Tensor, v_BTPHC: Tensor, mask_BT: Tensor) -> Tensor:
    return q_BPHC.new_empty(q_BPHC.shape)


@torch.library.custom_op("scalefold::pointwise_attention_backward", mutates_args=())
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grads = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    inputs = [x.contiguous() for x in (grad, q, k, v, mask)]
    if grad.numel():
        grid, arguments, constants = _launch("pointwise_attention_backward", q, k)
        pointwise_attention_backward_kernel[grid](*inputs, *grads, *arguments, **constants)
    return grads


@_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(grad, *ctx.saved_tensors), None


pointwise_attention.register_autograd(_gradients, setup_context=_save)


def _launch(
    name: str, q: Tensor, k: Tensor
) -> tuple[tuple[int, int], tuple[int, int, float], dict[str, int]]:
    """Grid, arguments after the pointers, and constants."""
    batch, positions, heads, channels = q.shape
    block_h, block_c = triton.next_power_of_2(heads), triton.next_power_of_2(channels)
    shape: dict[str, int | str] = {"P": positions, "T": k.shape[1], "H": heads, "C": channels}
    sizes = tile(name, architecture(q.device), shape)
    block_p = max(1, sizes.pop("ELEMENTS") // (block_h * block_c))
    grid = triton.cdiv(positions, block_p), batch
    blocks = {"BLOCK_P": block_p, "BLOCK_H": block_h, "BLOCK_C": block_c}
    arguments = k.shape[1], positions, channels**-0.5
    return grid, arguments, {"H": heads, "C": channels, **blocks, **sizes}


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> None:
    check_batch("pointwise attention", q)
    batch, *others = q.shape
    keys = (batch, mask.shape[-1], *others)
    if k.shape != keys or v.shape != keys or mask.shape != keys[:2]:
        raise ValueError(
            f"pointwise attention of q {tuple(q.shape)} with mask {tuple(mask.shape)} needs k and "
            f"v of shape {keys}, found {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if q.dtype != k.dtype or q.dtype != v.dtype:
        raise ValueError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}; convert them to one type")
