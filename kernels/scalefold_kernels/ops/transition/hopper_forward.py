"""Launch of the forward kernel for Hopper GPUs (H100, H200)."""

from __future__ import annotations

import triton
from torch import Tensor

from scalefold_kernels.gluon import ROWS
from scalefold_kernels.ops.norm.op import EPS
from scalefold_kernels.ops.transition.arguments import Kept, Parameters, shape_class
from scalefold_kernels.ops.transition.hopper.forward import forward_kernel
from scalefold_kernels.ops.transition.hopper.parts import width_of
from scalefold_kernels.tiles import tile
from scalefold_kernels.tma import num_ctas, tiles_of


def forward(x_RC: Tensor, parameters: Parameters, out_RC: Tensor, kept: Kept | None) -> None:
    """Fill ``out``, and what is kept for backward."""
    norm_weight, norm_bias, up, up_bias, down, down_bias = parameters
    num_rows, channels = x_RC.shape
    num_hidden = len(up)
    sizes = tile("transition_forward_hopper", "sm_90", shape_class(x_RC, num_hidden))
    width, block = width_of(channels), sizes["BLOCK_H"]
    num_tiles = triton.cdiv(num_rows, 2 * ROWS.value)
    # In the place of what is not kept, what is not looked at.
    normed, stats = kept or (out_RC, up_bias)
    forward_kernel[(num_ctas(num_tiles, x_RC.device),)](
        tiles_of(x_RC, ROWS.value, width),
        tiles_of(up, block, width),
        tiles_of(down, width, block),
        tiles_of(out_RC, ROWS.value, width),
        tiles_of(normed, ROWS.value, width),
        norm_weight,
        norm_bias,
        up_bias,
        down_bias,
        stats,
        num_rows,
        num_tiles,
        C=channels,
        H=num_hidden,
        EPS=EPS,
        BLOCK_C=width,
        KEEP=kept is not None,
        **sizes,
    )
