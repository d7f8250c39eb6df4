"""Launches of the kernels of backward for Hopper GPUs; which of them run, `hopper_launch` says."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from scalefold_kernels.limits import needs_int64
from scalefold_kernels.ops.attention.arguments import Gradients, Inputs, new_sums, turned
from scalefold_kernels.ops.attention.hopper.backward_keys import backward_keys_kernel
from scalefold_kernels.ops.attention.hopper.backward_queries import backward_queries_kernel
from scalefold_kernels.ops.attention.hopper.backward_queries_bias import BLOCK_K as BIAS_BLOCK_K
from scalefold_kernels.ops.attention.hopper.backward_queries_bias import (
    backward_queries_bias_kernel,
)
from scalefold_kernels.ops.attention.hopper.backward_row import backward_row_kernel
from scalefold_kernels.ops.attention.hopper_plan import dealt, plan, row_plan
from scalefold_kernels.ops.attention.hopper_tensors import (
    bias_descriptor,
    rows_descriptor,
    statistics_descriptor,
)
from scalefold_kernels.tma import padded

BIAS_KEYS = 2 * BIAS_BLOCK_K.value
"""What `queries_bias` takes; `queries` takes keys beyond."""


class Shared(NamedTuple):
    """What the kernels before it leave for that of the keys.

    Attributes
    ----------
    q : Tensor
        Queries; where there is a bias as forward multiplied them.
    grad_ungated, delta : Tensor
        Gradient of the result without the gate; sums of its products with the result.
    """

    q: Tensor
    grad_ungated: Tensor
    delta: Tensor


def row(inputs: Inputs, out: Tensor, lse: Tensor, grad_out: Tensor, gradients: Gradients) -> None:
    """Fill ``gradients``, all by one kernel."""
    q, k, v, gate, mask, *_ = inputs
    own = row_plan(inputs)
    # All positions of a row in one box.
    block, keys = 64 * own.constants["NUM_Q"], 16 * own.constants["num_warps"]
    q_desc = rows_descriptor(q, block)
    backward_row_kernel[(own.programs,)](
        q_desc,
        rows_descriptor(k, keys),
        rows_descriptor(v, keys),
        q_desc if gate is None else rows_descriptor(gate, block),
        rows_descriptor(out, block),
        rows_descriptor(grad_out, block),
        lse,
        rows_descriptor(gradients.q, block),
        rows_descriptor(gradients.k, keys),
        rows_descriptor(gradients.v, keys),
        q_desc if gradients.gate is None else rows_descriptor(gradients.gate, block),
        mask,
        *inputs.mask_strides,
        lse.stride(2),
        inputs.batch * inputs.num_rows * inputs.num_heads,
        *inputs.scalars,
        HAS_GATE=gate is not None,
        **own.constants,
    )


def queries(
    inputs: Inputs,
    bias: Tensor | None,
    lse: Tensor,
    shared: Shared,
    grad_q: Tensor,
    sum_bias: bool,
    waiting: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Fill ``grad_q``; return sums of the bias's gradient, if they are wanted.

    ``waiting``: gradients of queries from the keys that `queries_bias` takes; then these are the
    others.
    """
    _, k, v, _, mask, *_ = inputs
    first = 0 if waiting is None else BIAS_KEYS
    own = plan("attention_backward_queries_hopper", inputs, first)
    block, passes = own.constants["BLOCK_K"], own.constants["PASSES"]
    # Offsets of 64 bits, which the others were measured with, spill there.
    short = first > 0 and (passes > 1 or turned(bias))
    sums = new_sums(bias[..., first:], own.groups) if bias is not None and sum_bias else None
    if passes > 1 and waiting is None:
        waiting = new_waiting(inputs)
    backward_queries_kernel[(own.programs, inputs.batch)](
        rows_descriptor(shared.q, 64),
        rows_descriptor(k, block),
        rows_descriptor(v, block),
        rows_descriptor(shared.grad_ungated, 64),
        bias_descriptor(bias, shared.q, 64, block),
        grad_q,
        lse,
        shared.delta,
        mask,
        lse if sums is None else sums,
        lse if waiting is None else waiting,
        *grad_q.stride()[:4],
        *inputs.mask_strides,
        lse.stride(2),
        *inputs.scalars,
        HAS_BIAS=bias is not None,
        SUM_BIAS=sums is not None,
        BIAS_SCALE=inputs.bias_scale,
        TURNED=turned(bias),
        INT64=not short or needs_int64(grad_q),
        CHANNELS=inputs.channels,
        **own.constants,
    )
    return () if sums is None else (sums,)


def new_waiting(inputs: Inputs) -> Tensor:
    """New memory for gradients of queries from some of the keys; `parts.waiting_at`."""
    blocks = triton.cdiv(inputs.num_queries, 64)
    size = inputs.batch, inputs.num_rows, inputs.num_heads, blocks, 64, padded(inputs.channels)
    return torch.empty(size, device=inputs.q.device, dtype=torch.float32)


def queries_bias(
    inputs: Inputs,
    bias: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    gradients: Gradients,
    shared: Shared,
    waiting: Tensor | None,
) -> tuple[Tensor, ...]:
    """Fill the gradients of queries and gate, and ``shared``; see `hopper_launch.backward`.

    Returns sums of the bias's gradient. Of more keys than BIAS_KEYS these are the first, and the
    gradients of queries are left in ``waiting``, for `queries`.
    """
    q, k, v, gate, mask, *_ = inputs
    blocks = triton.cdiv(inputs.num_queries, 64)
    own = dealt({}, inputs, blocks, programs=1, unit=blocks * inputs.num_heads)
    sums = new_sums(bias[..., :BIAS_KEYS], own.groups)
    q_desc = rows_descriptor(q, 64)
    backward_queries_bias_kernel[(own.programs, inputs.batch)](
        q_desc,
        rows_descriptor(k, BIAS_BLOCK_K.value),
        rows_descriptor(v, BIAS_BLOCK_K.value),
        q_desc if gate is None else rows_descriptor(gate, 64),
        rows_descriptor(out, 64),
        rows_descriptor(grad_out, 64),
        statistics_descriptor(lse, 64),
        bias_descriptor(bias, q, 64, BIAS_BLOCK_K.value),
        rows_descriptor(gradients.q, 64),
        q_desc if gradients.gate is None else rows_descriptor(gradients.gate, 32),
        rows_descriptor(shared.grad_ungated, 32),
        rows_descriptor(shared.q, 32),
        shared.delta,
        mask,
        sums,
        lse if waiting is None else waiting,
        *inputs.mask_strides,
        lse.stride(2),
        *inputs.scalars,
        HAS_GATE=gate is not None,
        BIAS_SCALE=inputs.bias_scale,
        SCALE_Q=inputs.scales_q,
        TURNED=turned(bias),
        C=padded(inputs.channels),
        MORE_KEYS=waiting is not None,
        num_warps=4,
    )
    return (sums,)


def keys(
    inputs: Inputs,
    bias: Tensor | None,
    lse: Tensor,
    shared: Shared,
    grad_k: Tensor,
    grad_v: Tensor,
) -> None:
    """Fill ``grad_k`` and ``grad_v``."""
    _, k, v, _, mask, *_ = inputs
    own = plan("attention_backward_keys_hopper", inputs)
    block = own.constants["BLOCK_Q"]
    backward_keys_kernel[(own.programs, inputs.batch)](
        rows_descriptor(shared.q, block),
        rows_descriptor(k, 64),
        rows_descriptor(v, 64),
        rows_descriptor(shared.grad_ungated, block),
        statistics_descriptor(lse, block),
        statistics_descriptor(shared.delta, block),
        bias_descriptor(bias, shared.q, block, 64),
        rows_descriptor(grad_k, 64),
        rows_descriptor(grad_v, 64),
        mask,
        *inputs.mask_strides,
        *inputs.scalars,
        HAS_BIAS=bias is not None,
        BIAS_SCALE=inputs.bias_scale,
        TURNED=turned(bias),
        **own.constants,
    )
