"""Launches of the kernels for Hopper GPUs (H100, H200), and what these serve.

The rest is `portable`'s. Nothing here looks at data, so that which kernel runs depends on types,
sizes and strides alone.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.attention.arguments import Inputs
from scalefold_kernels.attention.hopper.backward_keys import backward_keys_kernel
from scalefold_kernels.attention.hopper.backward_queries import backward_queries_kernel
from scalefold_kernels.attention.hopper.forward import forward_kernel
from scalefold_kernels.tiles import Tile, tile

SHARED_BYTES = 227 * 1024 - 2048
"""Shared memory of a program; some is the compiler's own."""

MIN_QUERIES = 32
"""Of fewer queries most of a warp group's 64 would be empty."""

MAX_CHANNELS = 32
"""Wider heads gave wrong values (64 channels, H200); the model has none."""

_REGISTERS = {2: 232, 4: 104}
"""Of a thread, by the number of warp groups that compute."""

_VECTOR = 8
"""bfloat16 elements in the 16 bytes at whose multiples the copy engine's rows start."""


class Plan(NamedTuple):
    """How a kernel is launched: its constants, and the rows of a program."""

    constants: dict[str, int]
    tiles: int
    rows: int
    row_groups: int


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
        and all(f(inputs, 1) <= SHARED_BYTES for f in _SHARED.values())
    )


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
    plan = _plan("attention_forward_hopper", inputs)
    groups, block = plan.constants["GROUPS"], plan.constants["BLOCK_K"]
    q_desc = _rows_descriptor(q, 64)
    forward_kernel[(plan.tiles * plan.row_groups, inputs.batch)](
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
        plan.rows,
        inputs.num_rows,
        inputs.num_heads,
        inputs.num_queries,
        inputs.num_keys,
        inputs.scale,
        HAS_GATE=gate is not None,
        HAS_BIAS=bias is not None,
        C=_width(inputs),
        NUM_BLOCKS=triton.cdiv(inputs.num_keys, block),
        REGISTERS=_REGISTERS[groups],
        **plan.constants,
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
    q, k, v, _, mask, _ = inputs
    plan = _plan("attention_backward_queries_hopper", inputs)
    groups, block = plan.constants["GROUPS"], plan.constants["BLOCK_K"]
    partial = None
    if sum_bias:
        sizes = inputs.batch, inputs.num_heads, inputs.num_queries, inputs.num_keys
        partial = torch.empty((plan.row_groups, *sizes), device=q.device, dtype=torch.float32)
    backward_queries_kernel[(plan.tiles * plan.row_groups, inputs.batch)](
        _rows_descriptor(q, 64),
        _rows_descriptor(k, block),
        _rows_descriptor(v, block),
        _rows_descriptor(grad_ungated, 64),
        _bias_descriptor(bias, q, 64, block),
        _rows_descriptor(grad_q, 64),
        mask,
        lse,
        delta,
        lse if partial is None else partial,
        *inputs.mask_strides,
        lse.stride(2),
        plan.rows,
        inputs.num_rows,
        inputs.num_heads,
        inputs.num_queries,
        inputs.num_keys,
        inputs.scale,
        HAS_BIAS=bias is not None,
        SUM_BIAS=sum_bias,
        C=_width(inputs),
        NUM_BLOCKS=triton.cdiv(inputs.num_keys, groups * block),
        REGISTERS=_REGISTERS[groups],
        **plan.constants,
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
    plan = _plan("attention_backward_keys_hopper", inputs)
    groups, block = plan.constants["GROUPS"], plan.constants["BLOCK_Q"]
    backward_keys_kernel[(plan.tiles * plan.row_groups, inputs.batch)](
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
        plan.rows,
        inputs.num_rows,
        inputs.num_heads,
        inputs.num_keys,
        inputs.scale,
        HAS_BIAS=bias is not None,
        C=_width(inputs),
        NUM_BLOCKS=triton.cdiv(inputs.num_queries, block),
        REGISTERS=_REGISTERS[groups],
        **plan.constants,
    )


def _plan(kernel: str, inputs: Inputs) -> Plan:
    """Rows are dealt out so that the programs fill the GPU once, where there are enough of them."""
    sizes = _sizes(kernel, inputs)
    stages = 2 if _SHARED[kernel](inputs, 2) <= SHARED_BYTES else 1
    queries, keys = inputs.num_queries, inputs.num_keys
    blocks = {
        "attention_forward_hopper": triton.cdiv(queries, 64 * sizes["GROUPS"]),
        "attention_backward_queries_hopper": triton.cdiv(queries, 64),
        "attention_backward_keys_hopper": triton.cdiv(keys, 64 * sizes["GROUPS"]),
    }[kernel]
    tiles = blocks * inputs.num_heads
    wanted = max(1, _multiprocessors(inputs.q.device) // (tiles * inputs.batch))
    rows = triton.cdiv(inputs.num_rows, wanted)
    return Plan({**sizes, "STAGES": stages}, tiles, rows, triton.cdiv(inputs.num_rows, rows))


def _sizes(kernel: str, inputs: Inputs) -> Tile:
    return tile(kernel, "sm_90", inputs.shape_class)


def _forward_bytes(inputs: Inputs, stages: int) -> int:
    """Shared memory: bias; keys and values; queries, gate and result; mask."""
    sizes = _sizes("attention_forward_hopper", inputs)
    queries = 64 * sizes["GROUPS"]
    keys = _round_up(inputs.num_keys, sizes["BLOCK_K"])
    bias = 0 if inputs.bias is None else 2 * queries * keys
    return bias + 2 * _width(inputs) * (2 * stages * keys + 3 * queries) + 4 * stages * keys


def _backward_queries_bytes(inputs: Inputs, stages: int) -> int:
    """Shared memory: bias and its gradient; keys and values; queries; exchange; mask."""
    sizes = _sizes("attention_backward_queries_hopper", inputs)
    groups, width = sizes["GROUPS"], _width(inputs)
    keys = _round_up(inputs.num_keys, groups * sizes["BLOCK_K"])
    bias = 0 if inputs.bias is None else (2 + 4) * 64 * keys
    exchange = 4 * (groups - 1) * 64 * width
    return bias + 2 * width * (2 * stages * keys + 3 * 64) + exchange + 4 * stages * keys


def _backward_keys_bytes(inputs: Inputs, stages: int) -> int:
    """Shared memory: bias; queries and gradient; keys, values and results; statistics."""
    sizes = _sizes("attention_backward_keys_hopper", inputs)
    keys = 64 * sizes["GROUPS"]
    queries = _round_up(inputs.num_queries, sizes["BLOCK_Q"])
    bias = 0 if inputs.bias is None else 2 * queries * keys
    return bias + 2 * _width(inputs) * (2 * stages * queries + 4 * keys) + 8 * stages * queries


_SHARED = {
    "attention_forward_hopper": _forward_bytes,
    "attention_backward_queries_hopper": _backward_queries_bytes,
    "attention_backward_keys_hopper": _backward_keys_bytes,
}


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _width(inputs: Inputs) -> int:
    """Channels in shared memory; those beyond the head's are zeros."""
    return max(16, triton.next_power_of_2(inputs.channels))


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


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
