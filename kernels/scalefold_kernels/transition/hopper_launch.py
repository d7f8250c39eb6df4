"""Launches of the kernels for Hopper GPUs (H100, H200), and what these serve."""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.norm.op import EPS
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import tile
from scalefold_kernels.transition.arguments import Parameters, shape_class
from scalefold_kernels.transition.hopper.backward import backward_kernel
from scalefold_kernels.transition.hopper.forward import forward_kernel
from scalefold_kernels.transition.kernel import transition_finish_kernel

GROUP_ROWS = 64
"""Rows of a warp group; a program has two."""

_VECTOR = 8
"""bfloat16 elements in the 16 bytes at whose multiples the copy engine's rows start."""


def serves(x_RC: Tensor, parameters: Parameters) -> bool:
    """Whether these kernels, on a Hopper GPU, can take the arguments."""
    matrices = x_RC, parameters.up_weight, parameters.down_weight
    return (
        x_RC.dtype == torch.bfloat16
        and x_RC.shape[0] > 0
        and x_RC.shape[1] % _VECTOR == 0
        and parameters.up_weight.shape[0] % _VECTOR == 0
        and all(map(_reachable, matrices))
    )


def forward(x_RC: Tensor, parameters: Parameters, out_RC: Tensor) -> None:
    """Fill ``out``."""
    norm_weight, norm_bias, up, up_bias, down, down_bias = parameters
    channels, num_hidden = x_RC.shape[1], up.shape[0]
    sizes = tile("transition_forward_hopper", "sm_90", shape_class(x_RC, num_hidden))
    width, block = _width(channels), sizes["BLOCK_H"]
    num_tiles = triton.cdiv(x_RC.shape[0], 2 * GROUP_ROWS)
    forward_kernel[(_programs(num_tiles, x_RC.device),)](
        _tiles_of(x_RC, GROUP_ROWS, width),
        _tiles_of(up, block, width),
        _tiles_of(down, width, block),
        _tiles_of(out_RC, GROUP_ROWS, width),
        norm_weight,
        norm_bias,
        up_bias,
        down_bias,
        num_tiles,
        C=channels,
        H=num_hidden,
        EPS=EPS,
        BLOCK_C=width,
        **sizes,
    )


def backward(grad_RC: Tensor, x_RC: Tensor, parameters: Parameters) -> list[Tensor]:
    """Gradients of x; of the norm's weight and bias as (2, C); of the four others in order."""
    norm_weight, norm_bias, up, *_ = parameters
    if not _reachable(grad_RC):
        grad_RC = grad_RC.contiguous()
    hidden, grad_hidden, x_hat, grad_x, sums = backward_rows(grad_RC, x_RC, parameters)
    num_hidden, channels = up.shape
    totals = sum_rows(sums, torch.float32)
    raw = torch.mm(grad_hidden.t(), x_hat, out_dtype=torch.float32)
    grad_up, grad_norm = torch.empty_like(up), up.new_empty(2, channels)
    grad_up_bias, grad_down_bias = up.new_empty(num_hidden), up.new_empty(channels)
    sizes = tile("transition_finish", "sm_90", shape_class(x_RC, num_hidden))
    transition_finish_kernel[(triton.cdiv(channels, sizes["BLOCK_C"]),)](
        raw,
        up,
        norm_weight,
        norm_bias,
        totals,
        grad_up,
        grad_norm,
        grad_up_bias,
        grad_down_bias,
        C=channels,
        H=num_hidden,
        **sizes,
    )
    grad_down = torch.mm(grad_RC.t(), hidden)
    return [grad_x, grad_norm, grad_up, grad_up_bias, grad_down, grad_down_bias]


def backward_rows(
    grad_RC: Tensor, x_RC: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden channels, their gradient, normalised rows, gradient of x, sums for both biases."""
    norm_weight, norm_bias, up, up_bias, down, _ = parameters
    (num_rows, channels), num_hidden = x_RC.shape, up.shape[0]
    sizes = tile("transition_backward_hopper", "sm_90", shape_class(x_RC, num_hidden))
    width, block = _width(channels), sizes["BLOCK_H"]
    num_tiles = triton.cdiv(num_rows, 2 * GROUP_ROWS)
    hidden, grad_hidden = (x_RC.new_empty(num_rows, num_hidden) for _ in range(2))
    x_hat, grad_x = (x_RC.new_empty(num_rows, channels) for _ in range(2))
    shape = (2 * num_tiles, num_hidden + channels)
    sums = torch.empty(shape, dtype=torch.float32, device=x_RC.device)
    backward_kernel[(_programs(num_tiles, x_RC.device),)](
        _tiles_of(x_RC, GROUP_ROWS, width),
        _tiles_of(grad_RC, GROUP_ROWS, width),
        _tiles_of(up, block, width),
        _tiles_of(down, width, block),
        _tiles_of(hidden, GROUP_ROWS, block),
        _tiles_of(grad_hidden, GROUP_ROWS, block),
        _tiles_of(x_hat, GROUP_ROWS, width),
        _tiles_of(grad_x, GROUP_ROWS, width),
        norm_weight,
        norm_bias,
        up_bias,
        sums,
        num_tiles,
        C=channels,
        H=num_hidden,
        EPS=EPS,
        BLOCK_C=width,
        **sizes,
    )
    return hidden, grad_hidden, x_hat, grad_x, sums


def _width(channels: int) -> int:
    """Channels in shared memory; those beyond the tensor's are zeros."""
    return max(16, triton.next_power_of_2(channels))


def _tiles_of(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16)
    return TensorDescriptor(x, [*x.shape], [*x.stride()], [rows, columns], layout)


def _reachable(x: Tensor) -> bool:
    """Whether the copy engine can read a matrix: contiguous at the end, 16-byte steps."""
    return x.stride(1) == 1 and x.stride(0) % _VECTOR == 0 and x.data_ptr() % (2 * _VECTOR) == 0


def _programs(num_tiles: int, device: torch.device) -> int:
    """One on each multiprocessor, with every so many-th tile."""
    return min(num_tiles, _multiprocessors(device))


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
