"""Launch of the forward kernel for Hopper GPUs (H100, H200)."""

from __future__ import annotations

import triton
from torch import Tensor

from scalefold_kernels.copy_engine import num_programs, tiles_of
from scalefold_kernels.hopper import ROWS
from scalefold_kernels.norm.op import EPS
from scalefold_kernels.tiles import tile
from scalefold_kernels.transition.arguments import Parameters, shape_class
from scalefold_kernels.transition.hopper.forward import forward_kernel
from scalefold_kernels.transition.hopper.parts import width_of


def forward(x_RC: Tensor, parameters: Parameters, out_RC: Tensor) -> None:
    """Fill ``out``."""
    norm_weight, norm_bias, up, up_bias, down, down_bias = parameters
    channels, num_hidden = x_RC.shape[1], up.shape[0]
    sizes = tile("transition_forward_hopper", "sm_90", shape_class(x_RC, num_hidden))
    width, block = width_of(channels), sizes["BLOCK_H"]
    num_tiles = triton.cdiv(x_RC.shape[0], 2 * ROWS.value)
    forward_kernel[(num_programs(num_tiles, x_RC.device),)](
        tiles_of(x_RC, ROWS.value, width),
        tiles_of(up, block, width),
        tiles_of(down, width, block),
        tiles_of(out_RC, ROWS.value, width),
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
