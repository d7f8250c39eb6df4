"""Launches of the kernels for Hopper GPUs (H100, H200), and what these serve.

The rest is `portable`'s. Nothing here looks at data, so that which kernel runs depends on types,
sizes and strides alone.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.attention.arguments import Inputs
from scalefold_kernels.attention.hopper.backward_keys import backward_keys_kernel
from scalefold_kernels.attention.hopper.backward_queries import backward_queries_kernel
from scalefold_kernels.attention.hopper.backward_queries_bias import BLOCK_K as BIAS_BLOCK_K
from scalefold_kernels.attention.hopper.backward_queries_bias import backward_queries_bias_kernel
from scalefold_kernels.attention.hopper.forward import forward_kernel
from scalefold_kernels.attention.hopper_plan import KERNELS, Plan, dealt, plan, programs, width

MIN_PROGRAMS = 2
"""A multiprocessor must hold so many at a time; one alone hides no waits."""

MIN_QUERIES = 32
"""Of fewer queries most of a warp group's 64 would be empty."""

MAX_CHANNELS = 32
"""Of 64 channels some tiles gave wrong values on an H200; the model has no such heads."""

BIAS_KEYS = range(129, 257)
"""Numbers of keys with which registers hold the sum of the bias's gradient."""

BIAS_CHANNELS = 16
"""The fewest with which that is faster: rows of 16 bytes keep the copy engine busy."""

_VECTOR = 8
"""bfloat16 elements in the 16 bytes at whose multiples the copy engine's rows start."""


def serves(inputs: Inputs) -> bool:
    """Whether these kernels, on a Hopper GPU, can take the arguments."""
    q, k, v, gate, mask, bias = inputs
    tensors = [x for x in (q, k, v, gate) if x is not None]
    return (
        q.dtype == torch.bfloat16
        and (bias is None or bias.dtype == torch.bfloat16)
        and mask.is_floating_point()
        and inputs.num_queries >= MIN_QUERIES
        and inputs.channels % _VECTOR == 0
        and inputs.channels <= MAX_CHANNELS
        and all(map(_reachable, tensors))
        and all(programs(kernel, inputs) >= MIN_PROGRAMS for kernel in KERNELS)
    )


def sums_in_registers(inputs: Inputs) -> bool:
    """Whether `backward_queries_bias` takes less time than passes over the keys."""
    return inputs.num_keys in BIAS_KEYS and inputs.channels >= BIAS_CHANNELS


def bias_rows(bias: Tensor) -> Tensor:
    """The bias as the copy engine reads it: keys contiguous, rows at multiples of 16 bytes."""
    if bias.stride(-1) == 1 and _reachable(bias):
        return bias
    *others, keys = bias.shape
    padded = bias.new_empty((*others, -(-keys // _VECTOR) * _VECTOR))[..., :keys]
    return padded.copy_(bias)


def gradient_rows(grad_out: Tensor) -> Tensor:
    """The gradient of the output as the copy engine reads it."""
    return grad_out if _reachable(grad_out) else grad_out.contiguous()


def forward(inputs: Inputs, bias: Tensor | None, out: Tensor, lse: Tensor) -> None:
    """Fill ``out`` and ``lse``; ``bias`` is from `bias_rows`."""
    q, k, v, gate, mask, _ = inputs
    own = plan("attention_forward_hopper", inputs)
    block = own.constants["BLOCK_K"]
    q_desc = _rows_descriptor(q, 64)
    forward_kernel[(own.tiles * own.row_groups, inputs.batch)](
        q_desc,
        _rows_descriptor(k, block),
        _rows_descriptor(v, block),
        q_desc if gate is None else _rows_descriptor(gate, 64),
        _bias_descriptor(bias, q, 64, block),
        _rows_descriptor(out, 64),
        mask,
        lse,
        *inputs.mask_strides,
        lse.stride(2),
        own.rows,
        inputs.num_rows,
        inputs.num_heads,
        inputs.num_queries,
        inputs.num_keys,
        inputs.scale,
        HAS_GATE=gate is not None,
        HAS_BIAS=bias is not None,
        **own.constants,
    )


def backward_queries(
    inputs: Inputs,
    bias: Tensor | None,
    lse: Tensor,
    delta: Tensor,
    grad_ungated: Tensor,
    grad_q: Tensor,
    sum_bias: bool,
) -> Tensor | None:
    """Fill ``grad_q``; return partial sums (groups of rows, B, H, Q, K) of the bias gradient."""
    if bias is not None and sum_bias and sums_in_registers(inputs):
        return _backward_queries_bias(inputs, bias, lse, delta, grad_ungated, grad_q)
    q, k, v, _, mask, _ = inputs
    own = plan("attention_backward_queries_hopper", inputs)
    block, passes = own.constants["BLOCK_K"], own.constants["PASSES"]
    partial = _partial(inputs, own) if sum_bias else None
    count, waiting = own.tiles * own.row_groups, None
    if passes > 1:
        size = inputs.batch, count, own.rows, 64, width(inputs)
        waiting = torch.empty(size, device=q.device, dtype=torch.float32)
    backward_queries_kernel[(count, inputs.batch)](
        _rows_descriptor(q, 64),
        _rows_descriptor(k, block),
        _rows_descriptor(v, block),
        _rows_descriptor(grad_ungated, 64),
        _bias_descriptor(bias, q, 64, block),
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
        inputs.num_rows,
        inputs.num_heads,
        inputs.num_queries,
        inputs.num_keys,
        inputs.scale,
        HAS_BIAS=bias is not None,
        SUM_BIAS=sum_bias,
        CHANNELS=inputs.channels,
        **own.constants,
    )
    return partial


def _backward_queries_bias(
    inputs: Inputs,
    bias: Tensor,
    lse: Tensor,
    delta: Tensor,
    grad_ungated: Tensor,
    grad_q: Tensor,
) -> Tensor:
    q, k, v, _, mask, _ = inputs
    own = dealt({}, inputs, triton.cdiv(inputs.num_queries, 64), 1)
    partial = _partial(inputs, own)
    backward_queries_bias_kernel[(own.tiles * own.row_groups, inputs.batch)](
        _rows_descriptor(q, 64),
        _rows_descriptor(k, BIAS_BLOCK_K.value),
        _rows_descriptor(v, BIAS_BLOCK_K.value),
        _rows_descriptor(grad_ungated, 64),
        _bias_descriptor(bias, q, 64, BIAS_BLOCK_K.value),
        _rows_descriptor(grad_q, 64),
        lse,
        delta,
        mask,
        partial,
        *inputs.mask_strides,
        lse.stride(2),
        own.rows,
        inputs.num_rows,
        inputs.num_heads,
        inputs.num_queries,
        inputs.num_keys,
        inputs.scale,
        C=width(inputs),
        num_warps=4,
    )
    return partial


def backward_keys(
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
        _rows_descriptor(q, block),
        _rows_descriptor(k, 64),
        _rows_descriptor(v, 64),
        _rows_descriptor(grad_ungated, block),
        _statistics_descriptor(lse, block),
        _statistics_descriptor(delta, block),
        _bias_descriptor(bias, q, block, 64),
        _rows_descriptor(grad_k, 64),
        _rows_descriptor(grad_v, 64),
        mask,
        *inputs.mask_strides,
        own.rows,
        inputs.num_rows,
        inputs.num_heads,
        inputs.num_keys,
        inputs.scale,
        HAS_BIAS=bias is not None,
        **own.constants,
    )


def _partial(inputs: Inputs, own: Plan) -> Tensor:
    sizes = inputs.batch, inputs.num_heads, inputs.num_queries, inputs.num_keys
    return torch.empty((own.row_groups, *sizes), device=inputs.q.device, dtype=torch.float32)


def _rows_descriptor(x: Tensor, block: int) -> TensorDescriptor:
    """Tiles (block positions, channels) of a tensor (B, R, N, H, C); zeros beyond its ends."""
    width = max(16, triton.next_power_of_2(x.shape[-1]))
    layout = gl.NVMMASharedLayout(2 * width, 16, 5)
    return TensorDescriptor(x, [*x.shape], _steps(x), [1, 1, block, 1, width], layout)


def _bias_descriptor(
    bias: Tensor | None, stand_in: Tensor, block_q: int, block_k: int
) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(min(128, 2 * block_k), 16, 4)
    x = stand_in[:, 0] if bias is None else bias
    return TensorDescriptor(x, [*x.shape], _steps(x), [1, 1, block_q, block_k], layout)


def _statistics_descriptor(x: Tensor, block: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(0, 32, 4)
    return TensorDescriptor(x, [*x.shape], _steps(x), [1, 1, 1, block], layout)


def _steps(x: Tensor) -> list[int]:
    """Strides; those of dimensions of one element are never taken, but must be multiples too."""
    return [s if n > 1 else _VECTOR for n, s in zip(x.shape[:-1], x.stride()[:-1])] + [1]


def _reachable(x: Tensor) -> bool:
    """Whether the copy engine can read a tensor: contiguous at the end, 16-byte steps."""
    return (
        x.stride(-1) == 1
        and x.data_ptr() % (2 * _VECTOR) == 0
        and all(step > 0 and step % _VECTOR == 0 for step in _steps(x)[:-1])
    )
