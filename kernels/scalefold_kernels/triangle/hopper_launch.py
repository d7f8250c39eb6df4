"""Launches of the kernels for Hopper GPUs (H100, H200), and what these serve.

The rest is `portable`'s. Nothing here looks at data, so that which kernel runs depends on types and
sizes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.dropout.arguments import drawing
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.tma import within_reach
from scalefold_kernels.triangle import portable
from scalefold_kernels.triangle.arguments import (
    OutputArguments,
    Projected,
    ProjectionGradients,
    ProjectionKept,
    ProjectionWeights,
    new_statistics,
)
from scalefold_kernels.triangle.hopper.output import output_forward_kernel
from scalefold_kernels.triangle.hopper.output_backward import output_backward_kernel
from scalefold_kernels.triangle.hopper.parts import GROUPS, TILE
from scalefold_kernels.triangle.hopper.projection import projection_forward_kernel
from scalefold_kernels.triangle.hopper.projection_backward import projection_backward_kernel
from scalefold_kernels.triangle.sizes import EPS, Sizes

_REGISTERS = 232
"""Of a thread of the warp groups that compute, where there are no others."""

_THREADS = 256
"""Of a program with one warp group that computes; its loader has a warp group's place."""

_FILE = 65536
"""Registers of an SM."""


def serves(sizes: Sizes) -> bool:
    """Whether these kernels take the arguments: weights and tiles of such channels fit on the chip.

    TMA wants steps of 16 bytes from channel to channel of tensors with positions last.
    """
    return (
        sizes.arch == "sm_90"
        and sizes.dtype == torch.bfloat16
        and sizes.pair == sizes.hidden
        and sizes.pair in (64, 128)
        and sizes.positions > 0
        and sizes.positions % 8 == 0
    )


def projection(sizes: Sizes, z: Tensor, mask: Tensor, weights: ProjectionWeights) -> Projected:
    """As `portable.projection`."""
    found = Projected.empty(z, sizes.hidden)
    projection_forward_kernel[(_programs(sizes, z),)](
        _rows(z), *(_matrix(w, 64) for w in weights.matrices),
        _columns(found.a, 64), _columns(found.b, 64), _rows(found.gate, 64),
        mask, weights.scale, weights.shift, weights.a_bias, weights.a_gate_bias,
        weights.b_bias, weights.b_gate_bias, weights.gate_bias, found.mean, found.reciprocal,
        sizes.positions, EPS, C=sizes.pair, REGISTERS=_REGISTERS,
    )  # fmt: skip
    return found


def projection_backward(
    sizes: Sizes, gradients: ProjectionGradients, kept: ProjectionKept, weights: ProjectionWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """As `portable.projection_backward`."""
    d_a, d_b, d_gate, through = gradients
    z, mask, a, b, *statistics = kept
    d_z, standard = torch.empty_like(z), torch.empty_like(z)
    d_values = z.new_empty(4 * sizes.hidden, sizes.positions)
    programs, num_tiles, registers = _sharing(sizes, z, 2)
    projection_backward_kernel[(programs,)](
        *(_matrix(w, 64) for w in weights.matrices), *(_columns(x, 64) for x in (d_a, d_b, a, b)),
        _rows(d_gate, 64), _rows(z), _rows(z if through is None else through, 64),
        _rows(d_z), _columns(d_values, 64), _rows(standard), mask, *statistics,
        weights.scale, weights.shift, weights.a_gate_bias, weights.b_gate_bias,
        sizes.positions, num_tiles,
        HAS_THROUGH=through is not None, C=sizes.pair, maxnreg=registers,
    )  # fmt: skip
    return d_z, *portable.projection_weights(sizes, d_values, d_gate, standard)


def output(sizes: Sizes, given: OutputArguments, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `portable.output`."""
    product, gate, weights, _, dropout = given
    out = torch.empty_like(z)
    mean, reciprocal = new_statistics(z[..., 0])
    programs, num_tiles, registers = _sharing(sizes, z, 3 if sizes.pair == 64 else 2)
    output_forward_kernel[(programs,)](
        _columns(product, sizes.hidden), _rows(gate, 64), _rows(z, 64),
        _matrix(weights.matrix, 64), _rows(out, 64),
        weights.scale, weights.shift, weights.bias, *drawing(dropout),
        mean, reciprocal, sizes.positions, *z.shape[1:3], num_tiles, EPS,
        SHARED=None if dropout is None else dropout.shared, C=sizes.pair, maxnreg=registers,
    )  # fmt: skip
    return out, mean, reciprocal


def output_backward(
    sizes: Sizes, given: OutputArguments, d_out: Tensor, statistics: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of product and gate; parts of the sums that the parameters' are made of."""
    product, gate, weights, _, dropout = given
    d_product, d_gate = torch.empty_like(product), torch.empty_like(gate)
    programs, channels = _programs(sizes, gate), sizes.pair
    partial = gate.new_empty(programs, channels, channels, dtype=torch.float32)
    partial_bias = partial.new_empty(programs, channels)
    output_backward_kernel[(programs,)](
        _rows(d_out, 64), _columns(product, channels), _rows(gate, 64),
        _matrix(weights.matrix, 64), _columns(d_product, channels), _rows(d_gate, 64),
        *statistics, weights.scale, weights.shift, weights.bias,
        *drawing(dropout), partial, partial_bias, sizes.positions, *gate.shape[1:3],
        SHARED=None if dropout is None else dropout.shared, C=channels, STAGES=2, REGISTERS=160,
    )  # fmt: skip
    return d_product, d_gate, partial, partial_bias


def _programs(sizes: Sizes, x: Tensor) -> int:
    """One for each SM, or fewer where they would have nothing to do."""
    return min(num_sms(x.device), triton.cdiv(sizes.positions, TILE.value * GROUPS.value))


def _sharing(sizes: Sizes, x: Tensor, number: int) -> tuple[int, int, int]:
    """Programs, of which ``number`` share an SM; tiles; registers of a thread."""
    num_tiles = triton.cdiv(sizes.positions, TILE.value)
    registers = _FILE // (number * _THREADS) // 8 * 8
    return min(number * num_sms(x.device), num_tiles), num_tiles, registers


def _rows(x: Tensor, width: int | None = None) -> TensorDescriptor:
    """Tiles (positions, channels) of a contiguous tensor, channels last."""
    channels = x.shape[-1]
    return _descriptor(x.view(-1, channels), [TILE.value, channels if width is None else width])


def _columns(x: Tensor, height: int) -> TensorDescriptor:
    """Tiles (channels, positions) of a contiguous tensor, positions last."""
    return _descriptor(x.view(x.shape[0], -1), [height, TILE.value])


def _matrix(weight: Tensor, height: int) -> TensorDescriptor:
    """Rows of a weight."""
    return _descriptor(weight, [height, weight.shape[1]])


def _descriptor(x: Tensor, tile: list[int]) -> TensorDescriptor:
    x = within_reach(x)
    layout = gl.NVMMASharedLayout(min(128, 2 * tile[1]), 16, 2)
    return TensorDescriptor(x, [*x.shape], [x.stride(0), 1], tile, layout)
