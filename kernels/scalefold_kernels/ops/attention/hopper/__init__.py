"""Attention on Hopper GPUs (H100, H200), in bfloat16.

Which kernel runs depends on types, sizes and strides alone, never on data. Forward is `forward`.
Backward is the first of these that applies:

- No bias, 128 queries and keys or fewer: `backward_row`, a backend of its own.
- A bias with a gradient, `MIN_BIAS_KEYS` and `BIAS_CHANNELS` or more: `backward_queries_bias`, here
  ``of_first_keys``, for the first 256 keys; `backward_queries` for the others; `backward_keys`.
- Else: ``backward_gate`` of `triton.backward`; `backward_queries`; `backward_keys`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold_kernels.ops.attention.arguments import (
    Call,
    Gradients,
    Kept,
    new_rows,
    new_statistics,
)
from scalefold_kernels.ops.attention.hopper import backward_keys as of_keys
from scalefold_kernels.ops.attention.hopper import backward_queries as of_queries
from scalefold_kernels.ops.attention.hopper import backward_queries_bias as of_first_keys
from scalefold_kernels.ops.attention.hopper import forward as of_forward
from scalefold_kernels.ops.attention.hopper import launches
from scalefold_kernels.ops.attention.triton.backward import backward_gate
from scalefold_kernels.tma import VECTOR, why_unreachable

MIN_WARP_GROUPS = 2
"""Fewest warp groups that an SM must hold at a time; one alone hides no waits."""

MIN_QUERIES = 32
"""With fewer queries, most of a warp group's 64 rows would be empty."""

MAX_KEYS = 512
"""With more keys, a loader warp's registers do not hold the masks of this row and the next."""

MAX_CHANNELS = 32
"""Widest heads that the kernels take.

With heads of 64 channels, some configurations gave wrong results on an H200. Neither they, nor the
cause, nor the version of Triton is recorded. No attention of the model has heads that wide.
"""

MIN_BIAS_KEYS = 129
"""Fewest keys with which `backward_queries_bias`, with its sums in registers, takes less time."""

BIAS_CHANNELS = 16
"""Fewest channels with which it takes less time: with 8, rows of 16 bytes keep TMA busy."""


def why_not(function: str, call: Call) -> str | None:
    q, k, v, gate, mask, bias, *_ = call
    if q.dtype != torch.bfloat16 or (bias is not None and bias.dtype != torch.bfloat16):
        found = q.dtype if bias is None else f"{q.dtype} with a bias of {bias.dtype}"
        return f"takes bfloat16, found {found}"
    if not mask.is_floating_point():
        return f"takes a mask of a floating-point type, found {mask.dtype}"
    if not (q.numel() and k.numel()):
        return "takes no empty tensors"
    if call.num_queries < MIN_QUERIES:
        return f"takes {MIN_QUERIES} queries or more, found {call.num_queries}"
    if call.num_keys > MAX_KEYS:
        return f"takes {MAX_KEYS} keys at most, found {call.num_keys}"
    if call.channels % VECTOR or call.channels > MAX_CHANNELS:
        return (
            f"takes heads of {VECTOR} to {MAX_CHANNELS} channels in multiples of {VECTOR}, found "
            f"{call.channels}"
        )
    if reason := why_unreachable(q, k, v, gate):
        return reason
    for kernel in (of_forward, of_queries, of_keys):
        config = kernel.constants(call)
        if kernel.ctas_an_sm(call, config) * config.get("GROUPS", 1) < MIN_WARP_GROUPS:
            return f"an SM holds fewer than {MIN_WARP_GROUPS} warp groups of a kernel"
    return None


def sums_in_registers(call: Call) -> bool:
    """Whether `backward_queries_bias` takes less time than passes over the keys."""
    return call.num_keys >= MIN_BIAS_KEYS and call.channels >= BIAS_CHANNELS


def forward(call: Call, out: Tensor, lse: Tensor, rest: Tensor | None) -> None:
    of_forward.launch(call, Kept(out, lse, rest))


def backward(
    call: Call, kept: Kept, grad_out: Tensor, gradients: Gradients, sum_bias: bool
) -> tuple[Tensor, ...]:
    """Fill ``gradients``; return sums of the bias's gradient over groups of rows, `new_sums`.

    There is one tensor of sums for each part of the keys; none without ``sum_bias``.
    """
    q, gate = call.q, call.gate
    grad_out = launches.gradient_rows(grad_out)
    bias = None if call.bias is None else launches.bias_rows(call.bias)
    grad_o = grad_out if gate is None else new_rows(q.shape, q)
    scaled_q = new_rows(q.shape, q) if call.scales_q else q
    shared = of_keys.Shared(scaled_q, grad_o, new_statistics(q))
    lse = kept.lse
    sums: tuple[Tensor, ...]
    if bias is not None and sum_bias and sums_in_registers(call):
        more = call.num_keys > of_first_keys.KEYS
        waiting = of_queries.new_waiting(call) if more else None
        sums = of_first_keys.launch(call, bias, kept, grad_out, gradients, shared, waiting)
        if more:
            after = of_first_keys.KEYS, waiting
            sums += of_queries.launch(call, bias, lse, shared, gradients.q, sum_bias, *after)
    else:
        scaled = scaled_q if call.scales_q else None
        backward_gate(call, kept, grad_out, gradients.gate, grad_o, shared.delta, scaled)
        sums = of_queries.launch(call, bias, lse, shared, gradients.q, sum_bias)
    of_keys.launch(call, bias, lse, shared, gradients.k, gradients.v)
    return sums
