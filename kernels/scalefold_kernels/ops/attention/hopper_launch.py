"""What the kernels for Hopper GPUs (H100, H200) serve, and which of them run.

The rest is `portable`'s. Nothing here looks at data, so that which kernel runs depends on types,
sizes and strides alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold_kernels.ops.attention import hopper_backward
from scalefold_kernels.ops.attention.arguments import (
    Gradients,
    Inputs,
    new_rows,
    new_statistics,
    turned,
)
from scalefold_kernels.ops.attention.hopper.forward import forward_kernel
from scalefold_kernels.ops.attention.hopper_backward import Shared
from scalefold_kernels.ops.attention.hopper_plan import KERNELS, plan, warp_groups
from scalefold_kernels.ops.attention.hopper_tensors import (
    bias_descriptor,
    bias_rows,
    gradient_rows,
    rows_descriptor,
)
from scalefold_kernels.ops.attention.portable import backward_gate
from scalefold_kernels.tma import VECTOR, reachable

MIN_WARP_GROUPS = 2
"""An SM must hold so many at a time; one alone hides no waits."""

MIN_QUERIES = 32
"""Of fewer queries most of a warp group's 64 would be empty."""

MAX_KEYS = 512
"""Of more, a loader warp's registers do not hold the masks of this row and the next."""

MAX_CHANNELS = 32
"""Of 64 channels some tiles gave wrong values on an H200; the model has no such heads."""

MIN_BIAS_KEYS = 129
"""The fewest keys with which registers hold the sum of the bias's gradient from the first 256."""

BIAS_CHANNELS = 16
"""The fewest with which that is faster: rows of 16 bytes keep TMA busy."""

ROW_LENGTH = 128
"""The most queries, and keys, of which shared memory holds all that a row's gradients need."""


def serves(inputs: Inputs) -> bool:
    """Whether these kernels, on a Hopper GPU, can take the arguments."""
    q, k, v, gate, mask, bias, *_ = inputs
    tensors = [x for x in (q, k, v, gate) if x is not None]
    return (
        q.dtype == torch.bfloat16
        and q.numel() > 0
        and k.numel() > 0
        and (bias is None or bias.dtype == torch.bfloat16)
        and mask.is_floating_point()
        and inputs.num_queries >= MIN_QUERIES
        and inputs.num_keys <= MAX_KEYS
        and inputs.channels % VECTOR == 0
        and inputs.channels <= MAX_CHANNELS
        and all(map(reachable, tensors))
        and all(warp_groups(kernel, inputs) >= MIN_WARP_GROUPS for kernel in KERNELS)
    )


def sums_in_registers(inputs: Inputs) -> bool:
    """Whether `backward_queries_bias` takes less time than passes over the keys."""
    return inputs.num_keys >= MIN_BIAS_KEYS and inputs.channels >= BIAS_CHANNELS


def whole_rows(inputs: Inputs) -> bool:
    """Whether one kernel, `backward_row`, gives all gradients."""
    longest = max(inputs.num_queries, inputs.num_keys)
    return inputs.bias is None and longest <= ROW_LENGTH


def forward(inputs: Inputs, out: Tensor, lse: Tensor) -> None:
    """Fill ``out`` and ``lse``."""
    q, k, v, gate, mask, bias, *_ = inputs
    bias = None if bias is None else bias_rows(bias)
    own = plan("attention_forward_hopper", inputs)
    block = own.constants["BLOCK_K"]
    q_desc = rows_descriptor(q, 64)
    forward_kernel[(own.programs, inputs.batch)](
        q_desc,
        rows_descriptor(k, block),
        rows_descriptor(v, block),
        q_desc if gate is None else rows_descriptor(gate, 64),
        bias_descriptor(bias, q, 64, block),
        rows_descriptor(out, 64),
        mask,
        lse,
        *inputs.mask_strides,
        lse.stride(2),
        *inputs.scalars,
        HAS_GATE=gate is not None,
        HAS_BIAS=bias is not None,
        BIAS_SCALE=inputs.bias_scale,
        TURNED=turned(bias),
        **own.constants,
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

    By parts of the keys; none if they are not wanted.
    """
    q, gate = inputs.q, inputs.gate
    grad_out = gradient_rows(grad_out)
    if whole_rows(inputs):
        hopper_backward.row(inputs, out, lse, grad_out, gradients)
        return ()
    bias = None if inputs.bias is None else bias_rows(inputs.bias)
    grad_ungated = grad_out if gate is None else new_rows(q.shape, q)
    scaled_q = new_rows(q.shape, q) if inputs.scales_q else q
    shared = Shared(scaled_q, grad_ungated, new_statistics(q))
    if bias is not None and sum_bias and sums_in_registers(inputs):
        more = inputs.num_keys > hopper_backward.BIAS_KEYS
        waiting = hopper_backward.new_waiting(inputs) if more else None
        sums = hopper_backward.queries_bias(
            inputs, bias, out, lse, grad_out, gradients, shared, waiting
        )
        if more:
            sums += hopper_backward.queries(
                inputs, bias, lse, shared, gradients.q, sum_bias, waiting
            )
    else:
        backward_gate(
            inputs,
            out,
            grad_out,
            gradients.gate,
            grad_ungated,
            shared.delta,
            scaled_q if inputs.scales_q else None,
        )
        sums = hopper_backward.queries(inputs, bias, lse, shared, gradients.q, sum_bias)
    hopper_backward.keys(inputs, bias, lse, shared, gradients.k, gradients.v)
    return sums
