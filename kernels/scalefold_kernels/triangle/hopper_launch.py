"""Launches of the kernels for Hopper GPUs (H100, H200), and what these serve.

The rest is `portable`'s. Nothing here looks at data, so that which kernel runs depends on types and
sizes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.triangle import portable
from scalefold_kernels.triangle.hopper.output import output_forward_kernel
from scalefold_kernels.triangle.hopper.output_backward import output_backward_kernel
from scalefold_kernels.triangle.hopper.projection import projection_forward_kernel
from scalefold_kernels.triangle.hopper.projection_backward import projection_backward_kernel
from scalefold_kernels.triangle.sizes import EPS, DroppedOut, Sizes, statistics_of

TILE = 64
"""Positions of a warp group's tile."""

GROUPS = 2
"""Warp groups that compute."""

_REGISTERS = 232
"""Of a thread of theirs."""


def serves(sizes: Sizes) -> bool:
    """Whether these kernels take the arguments: weights and tiles of such channels fit on the chip.

    The copy engine wants steps of 16 bytes from channel to channel of tensors with positions last.
    """
    return (
        sizes.arch == "sm_90"
        and sizes.dtype == torch.bfloat16
        and sizes.pair == sizes.hidden
        and sizes.pair in (64, 128)
        and sizes.positions % 8 == 0
    )


def projection(
    sizes: Sizes, z: Tensor, mask: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """As `portable.projection`."""
    scale, shift, a_w, a_b, a_gate_w, a_gate_b, b_w, b_b, b_gate_w, b_gate_b, gate_w, gate_b = (
        parameters
    )
    a = z.new_empty(sizes.hidden, *mask.shape)
    b, gate = torch.empty_like(a), torch.empty_like(z)
    mean, reciprocal = statistics_of(mask)
    projection_forward_kernel[(_programs(sizes, z),)](
        _rows(z), *(_matrix(w, 64) for w in (a_w, a_gate_w, b_w, b_gate_w, gate_w)),
        _columns(a, 64), _columns(b, 64), _rows(gate, 64),
        mask, scale, shift, a_b, a_gate_b, b_b, b_gate_b, gate_b, mean, reciprocal,
        sizes.positions, EPS, C=sizes.pair, GROUPS=GROUPS, REGISTERS=_REGISTERS,
    )  # fmt: skip
    return a, b, gate, mean, reciprocal


def projection_backward(
    sizes: Sizes,
    gradients: Sequence[Tensor],
    d_through: Tensor | None,
    z: Tensor,
    mask: Tensor,
    operands: Sequence[Tensor],
    statistics: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """As `portable.projection_backward`."""
    scale, shift, a_w, _, a_gate_w, a_gate_b, b_w, _, b_gate_w, b_gate_b, gate_w, _ = parameters
    d_z, standard = torch.empty_like(z), torch.empty_like(z)
    d_values = z.new_empty(4 * sizes.hidden, sizes.positions)
    projection_backward_kernel[(_programs(sizes, z),)](
        *(_matrix(w, 64) for w in (a_w, a_gate_w, b_w, b_gate_w, gate_w)),
        *(_columns(x, 64) for x in (*gradients[:2], *operands)),
        _rows(gradients[2], 64), _rows(z), _rows(z if d_through is None else d_through),
        _rows(d_z), _columns(d_values, 64), _rows(standard), mask, *statistics,
        scale, shift, a_gate_b, b_gate_b, sizes.positions,
        HAS_THROUGH=d_through is not None, C=sizes.pair, REGISTERS=_REGISTERS,
    )  # fmt: skip
    return d_z, *portable.projection_weights(sizes, d_values, gradients[2], standard)


def output(
    sizes: Sizes,
    z: Tensor,
    product: Tensor,
    gate: Tensor,
    parameters: Sequence[Tensor],
    dropped: DroppedOut,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `portable.output`."""
    scale, shift, weight, bias = parameters
    out = torch.empty_like(z)
    mean, reciprocal = statistics_of(product[0])
    output_forward_kernel[(_programs(sizes, z),)](
        _columns(product, sizes.hidden), _rows(gate), _rows(z), _matrix(weight, sizes.pair),
        _rows(out), scale, shift, bias, *dropped, mean, reciprocal,
        sizes.positions, *z.shape[1:3], EPS,
        HAS_DROPOUT=dropped.keep is not None, C=sizes.pair, GROUPS=GROUPS, STAGES=2,
        REGISTERS=_REGISTERS,
    )  # fmt: skip
    return out, mean, reciprocal


def output_backward(
    sizes: Sizes,
    d_out: Tensor,
    product: Tensor,
    gate: Tensor,
    statistics: Sequence[Tensor],
    parameters: Sequence[Tensor],
    dropped: DroppedOut,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of product and gate; parts of the sums that the parameters' are made of."""
    scale, shift, weight, bias = parameters
    d_product, d_gate = torch.empty_like(product), torch.empty_like(gate)
    programs, channels = _programs(sizes, gate), sizes.pair
    partial = gate.new_empty(programs, channels, channels, dtype=torch.float32)
    partial_bias = partial.new_empty(programs, channels)
    output_backward_kernel[(programs,)](
        _rows(d_out, 64), _columns(product, channels), _rows(gate, 64), _matrix(weight, 64),
        _columns(d_product, channels), _rows(d_gate, 64), *statistics, scale, shift, bias,
        *dropped, partial, partial_bias, sizes.positions, *gate.shape[1:3],
        HAS_DROPOUT=dropped.keep is not None, C=channels, STAGES=2, REGISTERS=160,
    )  # fmt: skip
    return d_product, d_gate, partial, partial_bias


def _programs(sizes: Sizes, x: Tensor) -> int:
    """One for each multiprocessor, or fewer where they would have nothing to do."""
    return min(_multiprocessors(x.device), triton.cdiv(sizes.positions, TILE * GROUPS))


def _rows(x: Tensor, width: int | None = None) -> TensorDescriptor:
    """Tiles (positions, channels) of a contiguous tensor, channels last."""
    channels = x.shape[-1]
    return _descriptor(x.view(-1, channels), [TILE, channels if width is None else width])


def _columns(x: Tensor, height: int) -> TensorDescriptor:
    """Tiles (channels, positions) of a contiguous tensor, positions last."""
    return _descriptor(x.view(x.shape[0], -1), [height, TILE])


def _matrix(weight: Tensor, height: int) -> TensorDescriptor:
    """Rows of a weight."""
    return _descriptor(weight, [height, weight.shape[1]])


def _descriptor(x: Tensor, tile: list[int]) -> TensorDescriptor:
    if x.data_ptr() % 16:  # a slice of a larger tensor that begins anywhere
        x = x.clone()
    layout = gl.NVMMASharedLayout(min(128, 2 * tile[1]), 16, 2)
    return TensorDescriptor(x, [*x.shape], [x.stride(0), 1], tile, layout)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
