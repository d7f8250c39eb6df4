"""``scalefold::pointwise_attention``: one query at each position, a few keys there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.backends import TRITON, Backends
from scalefold_kernels.checks import check_batch, check_shapes, check_types

_BACKENDS = Backends("pointwise_attention", __package__, TRITON)


@torch.library.custom_op("scalefold::pointwise_attention", mutates_args=())
def pointwise_attention(
    q_BPHC: Tensor, k_BTPHC: Tensor, v_BTPHC: Tensor, mask_BT: Tensor
) -> Tensor:
    """Attention of the query at each position to the keys at it (core of Suppl. Alg. 17).

    Legend: B samples, P positions, T keys (templates), H heads, C channels of a head.

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

    Raises ValueError where shapes or types do not fit each other, or samples are too many.
    """
    _check(q_BPHC, k_BTPHC, v_BTPHC, mask_BT)
    out = torch.empty(q_BPHC.shape, dtype=q_BPHC.dtype, device=q_BPHC.device)
    inputs = [x.contiguous() for x in (q_BPHC, k_BTPHC, v_BTPHC, mask_BT)]
    if out.numel():
        _BACKENDS.choose("forward", q_BPHC.device).forward(*inputs, out)
    return out


@pointwise_attention.register_fake
def _(q_BPHC: Tensor, k_BTPHC: Tensor, v_BTPHC: Tensor, mask_BT: Tensor) -> Tensor:
    return q_BPHC.new_empty(q_BPHC.shape)


@torch.library.custom_op("scalefold::pointwise_attention_backward", mutates_args=())
def _pointwise_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grads = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    inputs = [x.contiguous() for x in (grad, q, k, v, mask)]
    if grad.numel():
        _BACKENDS.choose("backward", q.device).backward(*inputs, *grads)
    return grads


@_pointwise_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_pointwise_attention_backward(grad, *ctx.saved_tensors), None


pointwise_attention.register_autograd(_backward, setup_context=_save)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> None:
    check_batch("pointwise attention", q)
    keys = (len(q), mask.shape[-1], *q.shape[1:])
    named = (("k", k, keys), ("v", v, keys), ("mask", mask, keys[:2]))
    check_shapes(f"pointwise attention of q {tuple(q.shape)}", named)
    check_types("pointwise attention", (q, k, v))
