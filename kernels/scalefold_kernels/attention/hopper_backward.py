"""Launches of the kernels of backward for Hopper GPUs; which of them run, `hopper_launch` says."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from scalefold_kernels.attention.arguments import Gradients, Inputs
from scalefold_kernels.attention.hopper.backward_keys import backward_keys_kernel
from scalefold_kernels.attention.hopper.backward_queries import backward_queries_kernel
from scalefold_kernels.attention.hopper.backward_queries_bias import BLOCK_K as BIAS_BLOCK_K
from scalefold_kernels.attention.hopper.backward_queries_bias import backward_queries_bias_kernel
from scalefold_kernels.attention.hopper.backward_row import backward_row_kernel
from scalefold_kernels.attention.hopper_plan import Plan, dealt, plan, row_plan
from scalefold_kernels.attention.hopper_tensors import (
    bias_descriptor,
    rows_descriptor,
    statistics_descriptor,
)
from scalefold_kernels.copy_engine import padded


def row(inputs: Inputs, out: Tensor, lse: Tensor, grad_out: Tensor, gradients: Gradients) -> None:
    """Fill ``gradients``, all by one kernel."""
    q, k, v, gate, mask, _ = inputs
    own = row_plan(inputs)
    keys = 16 * own.constants["num_warps"]
    q_desc = rows_descriptor(q, 64)
    backward_row_kernel[(own.tiles,)](
        q_desc,
        rows_descriptor(k, keys),
        rows_descriptor(v, keys),
        q_desc if gate is None else rows_descriptor(gate, 64),
        rows_descriptor(out, 64),
        rows_descriptor(grad_out, 64),
        lse,
        rows_descriptor(gradients.q, 64),
        rows_descriptor(gradients.k, keys),
        rows_descriptor(gradients.v, keys),
        q_desc if gradients.gate is None else rows_descriptor(gradients.gate, 64),
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
    delta: Tensor,
    grad_ungated: Tensor,
    grad_q: Tensor,
    sum_bias: bool,
) -> Tensor | None:
    """Fill ``grad_q``; return partial sums (groups of rows, B, H, Q, K) of the bias gradient."""
    q, k, v, _, mask, _ = inputs
    own = plan("attention_backward_queries_hopper", inputs)
    block, passes = own.constants["BLOCK_K"], own.constants["PASSES"]
    partial = _partial(inputs, own) if sum_bias else None
    count, waiting = own.tiles * own.row_groups, None
    if passes > 1:
        size = inputs.batch, count, own.rows, 64, padded(inputs.channels)
        waiting = torch.empty(size, device=q.device, dtype=torch.float32)
    backward_queries_kernel[(count, inputs.batch)](
        rows_descriptor(q, 64),
        rows_descriptor(k, block),
        rows_descriptor(v, block),
        rows_descriptor(grad_ungated, 64),
        bias_descriptor(bias, q, 64, block),
        grad_q,
        lse,
        delta,
        mask,
        lse if partial is None else partial,
        lse if waiting is None else waiting,
        *grad_q.stride()[:4],
        *inputs.mask_strides,
        lse.stride(2),
        own.rows,
        *inputs.scalars,
        HAS_BIAS=bias is not None,
        SUM_BIAS=sum_bias,
        CHANNELS=inputs.channels,
        **own.constants,
    )
    return partial


def queries_bias(
    inputs: Inputs,
    bias: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    gradients: Gradients,
    grad_ungated: Tensor,
    delta: Tensor,
) -> Tensor:
    """Fill the gradients of queries and gate, ``grad_ungated`` and ``delta``; as `queries`."""
    q, k, v, gate, mask, _ = inputs
    own = dealt({}, inputs, triton.cdiv(inputs.num_queries, 64), 1)
    partial = _partial(inputs, own)
    q_desc = rows_descriptor(q, 64)
    backward_queries_bias_kernel[(own.tiles * own.row_groups, inputs.batch)](
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
        rows_descriptor(grad_ungated, 32),
        delta,
        mask,
        partial,
        *inputs.mask_strides,
        lse.stride(2),
        own.rows,
        *inputs.scalars,
        HAS_GATE=gate is not None,
        C=padded(inputs.channels),
        num_warps=4,
    )
    return partial


def keys(
    inputs: Inputs,
    bias: Tensor | None,
    lse: Tensor,
    delta: Tensor,
    grad_ungated: Tensor,
    grad_k: Tensor,
    grad_v: Tensor,
) -> None:
    """Fill ``grad_k`` and ``grad_v``."""
    q, k, v, _, mask, _ = inputs
    own = plan("attention_backward_keys_hopper", inputs)
    block = own.constants["BLOCK_Q"]
    backward_keys_kernel[(own.tiles * own.row_groups, inputs.batch)](
        rows_descriptor(q, block),
        rows_descriptor(k, 64),
        rows_descriptor(v, 64),
        rows_descriptor(grad_ungated, block),
        statistics_descriptor(lse, block),
        statistics_descriptor(delta, block),
        bias_descriptor(bias, q, block, 64),
        rows_descriptor(grad_k, 64),
        rows_descriptor(grad_v, 64),
        mask,
        *inputs.mask_strides,
        own.rows,
        *inputs.scalars,
        HAS_BIAS=bias is not None,
        **own.constants,
    )


def _partial(inputs: Inputs, own: Plan) -> Tensor:
    sizes = inputs.batch, inputs.num_heads, inputs.num_queries, inputs.num_keys
    return torch.empty((own.row_groups, *sizes), device=inputs.q.device, dtype=torch.float32)
