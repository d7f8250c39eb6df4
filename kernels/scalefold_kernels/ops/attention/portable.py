"""Launches of the kernels that serve any GPU, type, head size and length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton
from torch import Tensor

from scalefold_kernels.ops.attention import kernel as kernels
from scalefold_kernels.ops.attention.arguments import (
    Gradients,
    Inputs,
    new_rows,
    new_statistics,
    new_sums,
    turned,
)
from scalefold_kernels.tiles import Tile, architecture, tile


def forward(inputs: Inputs, out: Tensor, lse: Tensor) -> None:
    """Fill ``out`` and ``lse``."""
    q, k, v, gate, mask, bias, *_ = inputs
    sizes = _tile("attention_forward", inputs)
    kernels.forward_kernel[_per_row(inputs, inputs.num_queries, sizes["BLOCK_Q"])](
        q,
        k,
        v,
        gate,
        mask,
        bias,
        out,
        lse,
        *map(_strides, (q, k, v, gate)),
        inputs.mask_strides,
        _strides(bias),
        _strides(out),
        lse.stride(2),
        *inputs.scalars,
        C=inputs.channels,
        HAS_GATE=gate is not None,
        HAS_BIAS=bias is not None,
        BIAS_SCALE=inputs.bias_scale,
        **sizes,
    )


def backward(
    inputs: Inputs,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    gradients: Gradients,
    sum_bias: bool,
) -> tuple[Tensor, ...]:
    """Fill ``gradients``; return sums of the bias's gradient over groups of rows, `new_sums`.

    None if they are not wanted.
    """
    q, gate, bias = inputs.q, inputs.gate, inputs.bias
    delta, grad_out = new_statistics(q), _heads_together(grad_out)
    grad_ungated = grad_out if gate is None else new_rows(q.shape, q)
    backward_gate(inputs, out, grad_out, gradients.gate, grad_ungated, delta)
    backward_queries(inputs, lse, delta, grad_ungated, gradients.q)
    backward_keys(inputs, lse, delta, grad_ungated, gradients.k, gradients.v)
    if bias is None or not sum_bias:
        return ()
    return (backward_bias(inputs, bias, lse, delta, grad_ungated),)


def backward_queries(
    inputs: Inputs, lse: Tensor, delta: Tensor, grad_ungated: Tensor, grad_q: Tensor
) -> None:
    """Fill ``grad_q``."""
    sizes = _tile("attention_backward_queries", inputs)
    grid = _per_row(inputs, inputs.num_queries, sizes["BLOCK_Q"])
    kernel = kernels.backward_queries_kernel[grid]
    _differentiate(kernel, inputs, lse, delta, grad_ungated, [grad_q], sizes)


def backward_keys(
    inputs: Inputs,
    lse: Tensor,
    delta: Tensor,
    grad_ungated: Tensor,
    grad_k: Tensor,
    grad_v: Tensor,
) -> None:
    """Fill ``grad_k`` and ``grad_v``."""
    sizes = _tile("attention_backward_keys", inputs)
    grid = _per_row(inputs, inputs.num_keys, sizes["BLOCK_K"])
    kernel = kernels.backward_keys_kernel[grid]
    _differentiate(kernel, inputs, lse, delta, grad_ungated, [grad_k, grad_v], sizes)


def _differentiate(
    kernel: Callable[..., Any],
    inputs: Inputs,
    lse: Tensor,
    delta: Tensor,
    grad_ungated: Tensor,
    gradients: Sequence[Tensor],
    sizes: Tile,
) -> None:
    """Launch a kernel that fills some gradients; both take the same arguments."""
    q, k, v, _, mask, bias, *_ = inputs
    kernel(
        q,
        k,
        v,
        mask,
        bias,
        lse,
        delta,
        grad_ungated,
        *gradients,
        *map(_strides, (q, k, v)),
        inputs.mask_strides,
        *map(_strides, (bias, grad_ungated, *gradients)),
        lse.stride(2),
        *inputs.scalars,
        C=inputs.channels,
        HAS_BIAS=bias is not None,
        BIAS_SCALE=inputs.bias_scale,
        **sizes,
    )


def backward_bias(
    inputs: Inputs, bias: Tensor, lse: Tensor, delta: Tensor, grad_ungated: Tensor
) -> Tensor:
    """Sums of the bias's gradient over groups of rows, as `new_sums` has them."""
    q, k, v, _, mask, *_ = inputs
    sizes = _tile("attention_backward_bias", inputs)
    batch, heads = inputs.batch, inputs.num_heads
    tiles = triton.cdiv(inputs.num_queries, sizes["BLOCK_Q"]) * triton.cdiv(
        inputs.num_keys, sizes["BLOCK_K"]
    )
    groups = triton.cdiv(inputs.num_rows, sizes["ROWS"])
    partial = new_sums(bias, groups)
    first, second = partial.stride()[-2:]
    kernels.backward_bias_kernel[(tiles * heads * groups, batch)](
        q,
        k,
        v,
        mask,
        bias,
        lse,
        delta,
        grad_ungated,
        partial,
        *map(_strides, (q, k, v)),
        inputs.mask_strides,
        *map(_strides, (bias, grad_ungated)),
        (second, first) if turned(bias) else (first, second),
        lse.stride(2),
        *inputs.scalars,
        C=inputs.channels,
        BIAS_SCALE=inputs.bias_scale,
        **sizes,
    )
    return partial


def backward_gate(
    inputs: Inputs,
    out: Tensor,
    grad_out: Tensor,
    grad_gate: Tensor | None,
    grad_ungated: Tensor | None,
    delta: Tensor,
    scaled_q: Tensor | None = None,
) -> None:
    """Fill ``delta`` and, where there is a gate, the gradients of gate and ungated output.

    And ``scaled_q``, if it is wanted: the queries as forward multiplied them.
    """
    gate = inputs.gate
    sizes = _tile("attention_backward_gate", inputs)
    heads = triton.next_power_of_2(inputs.num_heads)
    block_q = max(1, sizes.pop("BLOCK") // (heads * triton.next_power_of_2(inputs.channels)))
    gate = None if gate is None else _heads_together(gate)
    q = None if scaled_q is None else _heads_together(inputs.q)
    blocks = triton.cdiv(inputs.num_queries, block_q)
    kernels.backward_gate_kernel[(blocks * inputs.num_rows, inputs.batch)](
        gate,
        out,
        grad_out,
        grad_gate,
        grad_ungated,
        delta,
        q,
        scaled_q,
        *map(_strides, (gate, out, grad_out, grad_gate, grad_ungated, q, scaled_q)),
        delta.stride(2),
        inputs.num_rows,
        inputs.num_heads,
        inputs.num_queries,
        inputs.scale,
        C=inputs.channels,
        HAS_GATE=gate is not None,
        SCALE_Q=scaled_q is not None,
        BIAS_SCALE=inputs.bias_scale,
        BLOCK_Q=block_q,
        BLOCK_H=heads,
        **sizes,
    )


def _heads_together(x: Tensor) -> Tensor:
    """Heads one after the other in memory: a position's channels are read as one line."""
    return x if x.stride()[3:] == (x.shape[4], 1) else x.contiguous()


def _per_row(inputs: Inputs, positions: int, block: int) -> tuple[int, int]:
    return triton.cdiv(positions, block) * inputs.num_heads * inputs.num_rows, inputs.batch


def _strides(x: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0, 0) if x is None else tuple(x.stride()[:4])


def _tile(kernel: str, inputs: Inputs) -> Tile:
    return tile(kernel, architecture(inputs.q.device), inputs.shape_class)
