"""Gated attention with mask and pair bias as an operator of torch.

Forward keeps its arguments, its result and the log-sum-exp of each query and head, from which
backward recomputes the weights. Gradients of q, k, v and gate are slices of one tensor, laid out
like the projections that they are the gradients of, so that nothing needs to copy them together.

Where there is a bias, forward also keeps what rounding takes from the result. A bias may leave one
key with nearly all of the weight. The gradient of its logit is then a small difference of two
numbers, and one of them comes from the result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.backends import HOPPER, TRITON, Backend, Backends
from scalefold_kernels.ops.attention.arguments import (
    Call,
    Gradients,
    Kept,
    checked,
    in_memory,
    new_rest,
    new_rows,
    new_statistics,
    transposed,
)
from scalefold_kernels.ops.attention.rest import SHIFTS
from scalefold_kernels.sums import sum_rows

_BACKENDS = Backends(
    "attention", __package__, Backend("hopper.backward_row", "hopper"), HOPPER, TRITON
)


def attention(
    q_BRQHC: Tensor,
    k_BRKHC: Tensor,
    v_BRKHC: Tensor,
    gate_BRQHC: Tensor | None,
    mask_BRK: Tensor,
    bias_BHQK: Tensor | None,
    bias_scale: float = 1.0,
    scale: float | None = None,
) -> Tensor:
    """Scaled dot-product attention of AlphaFold2 (core of Suppl. Alg. 7, 8, 13, 14, 17).

    Arguments and result are those of `api.attention`, of any strides; a copy is made where channels
    are not contiguous. Besides:

    Parameters
    ----------
    bias_scale : float
        Positive, the unit u of bias and logits: ``s = scale / u * q.k + bias``, and weights are
        proportional to ``2^(log2(e) * u * s)``. For a bias in bits, u = ln 2, nothing is
        multiplied. Kernels have u as the constant ``BIAS_SCALE``, and are compiled for each value.
    scale : float, optional
        Where it is ``bias_scale``, queries are taken as they are. Else they are multiplied by
        ``scale / u`` and rounded once more.

    Raises ValueError where shapes or types do not fit each other, or samples are too many.
    """
    if bias_BHQK is not None and 1 not in bias_BHQK.stride()[-2:]:
        # Heads last, as a linear map leaves them: one copy for forward and backward.
        bias_BHQK = bias_BHQK.contiguous()
    if mask_BRK.stride(-1) != 1:
        # Attention along columns: every CTA would gather each of its rows' masks.
        mask_BRK = mask_BRK.contiguous()
    scale = q_BRQHC.shape[-1] ** -0.5 if scale is None else scale
    tensors = q_BRQHC, k_BRKHC, v_BRKHC, gate_BRQHC, mask_BRK, bias_BHQK
    trains = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    return _attention(*tensors, bias_scale, scale, trains and bias_BHQK is not None)[0]


@torch.library.custom_op("scalefold::attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None,
    mask: Tensor,
    bias: Tensor | None,
    bias_scale: float,
    scale: float,
    keep_rest: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result, the logarithms of the softmax's sums, and the result's rounding errors.

    The errors are empty without ``keep_rest``, or if the result is in float32.
    """
    call = checked(q, k, v, gate, mask, bias, bias_scale, scale)
    out, lse, rest = _results(q, keep_rest)
    _BACKENDS.choose("forward", q.device, call).forward(call, out, lse, _or_none(rest))
    return out, lse, rest


@_attention.register_fake
def _(q: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _results(q, others[-1])


def _results(q: Tensor, keep_rest: bool) -> tuple[Tensor, Tensor, Tensor]:
    keep_rest &= q.dtype in SHIFTS
    rest = new_rest(q) if keep_rest else q.new_empty(0, dtype=torch.int8)
    return new_rows(q.shape, q), new_statistics(q), rest


def _or_none(rest: Tensor) -> Tensor | None:
    return rest if rest.ndim > 1 else None


@torch.library.custom_op("scalefold::attention_backward", mutates_args=())
def _attention_backward(
    grad_out: Tensor,
    tensors: list[Tensor | None],
    bias_scale: float,
    scale: float,
    kept: list[Tensor],
    sum_bias: bool,
) -> list[Tensor]:
    """What `_gradients` has memory for; and the bias's gradient if ``sum_bias``."""
    given: list[Any] = [*tensors, bias_scale, scale]
    call = checked(*given)
    results = _gradients(call)
    out, lse, rest = kept
    backend = _BACKENDS.choose("backward", call.q.device, call)
    gradients, known = _slices(results, call.gate is not None), Kept(out, lse, _or_none(rest))
    sums = backend.backward(call, known, grad_out, gradients, sum_bias)
    if call.bias is not None and sums:
        results.append(_summed(call.bias, sums))
    return results


@_attention_backward.register_fake
def _(_grad: Tensor, tensors: list[Tensor | None], *others: Any) -> list[Tensor]:
    bias_scale, scale, _, sum_bias = others
    given: list[Any] = [*tensors, bias_scale, scale]
    call = Call(*given)
    bias = [_bias_gradient(call.bias)] if call.bias is not None and sum_bias else []
    return _gradients(call) + bias


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.bias_scale, ctx.scale, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, grad_out: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_out is None:
        return (None,) * 9
    *tensors, out, lse, rest = ctx.saved_tensors
    kept = [out, lse, rest]
    wanted = ctx.needs_input_grad[5]
    results = _attention_backward(grad_out, tensors, ctx.bias_scale, ctx.scale, kept, wanted)
    grads = _slices(results, tensors[3] is not None)
    return *grads, None, results[-1] if wanted else None, None, None, None


_attention.register_autograd(_backward, setup_context=_save)


def _bias_gradient(bias: Tensor) -> Tensor:
    """Memory for the bias's gradient, queries and keys in the order in which the bias has them."""
    memory = torch.empty_like(in_memory(bias), memory_format=torch.contiguous_format)
    return memory.mT if transposed(bias) else memory


def _summed(bias: Tensor, sums: tuple[Tensor, ...]) -> Tensor:
    """The bias's gradient from its sums over groups of rows, by parts of the keys."""
    gradient = _bias_gradient(bias)
    if len(sums) == 1:
        sum_rows(sums[0].flatten(1), bias.dtype, gradient)
    else:
        parts = [sum_rows(x.flatten(1), bias.dtype).view(x.shape[1:]) for x in sums]
        torch.cat(parts, -2 if transposed(bias) else -1, out=in_memory(gradient))
    return gradient


def _gradients(call: Call) -> list[Tensor]:
    """Memory for the gradients: one tensor (B, R, N, q k v gate, H, C) where lengths are equal."""
    q, k, _, gate, *_ = call
    parts = [q, k, k] if gate is None else [q, k, k, q]
    if q.shape == k.shape:
        return [new_rows((*q.shape[:3], len(parts), *q.shape[3:]), q)]
    return [new_rows(part.shape, part) for part in parts]


def _slices(results: list[Tensor], gated: bool) -> Gradients:
    parts = results[0].unbind(3) if results[0].ndim == 6 else results
    return Gradients(parts[0], parts[1], parts[2], parts[3] if gated else None)
