"""Launch of the operands' backward for Hopper GPUs (H100, H200), and what it serves."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from scalefold_kernels.copy_engine import VECTOR, num_programs, padded, reachable, tiles_of
from scalefold_kernels.hopper import ROWS
from scalefold_kernels.norm.op import EPS
from scalefold_kernels.outer_product.operands.hopper.backward import (
    BLOCK_C,
    backward_hopper_kernel,
)
from scalefold_kernels.tiles import tile

MIN_CHANNELS = 33
"""Half of the rows' width in shared memory, 64 at least."""


def serves(grad_2BNCS: Tensor, m_BSNM: Tensor, through: Tensor | None) -> bool:
    """Whether the kernel, on a Hopper GPU, can take the arguments."""
    return (
        through is not None
        and m_BSNM.dtype == torch.bfloat16
        and m_BSNM.shape[-1] >= MIN_CHANNELS
        and m_BSNM.shape[-1] % VECTOR == 0
        and grad_2BNCS.shape[-1] % VECTOR == 0
        and all(map(reachable, (grad_2BNCS, m_BSNM, through)))
    )


def partial_sums(
    grad_2BNCS: Tensor,
    m_BSNM: Tensor,
    mask_BSN: Tensor,
    norm_weight: Tensor,
    weights: tuple[Tensor, Tensor],
    through: Tensor,
    grad_m: Tensor,
) -> Tensor:
    """Fill the gradient of m; returns ``partial`` of `kernel.backward_kernel`."""
    batch, num_seq, num_res, channels = m_BSNM.shape
    hidden = len(weights[0])
    dtype = str(m_BSNM.dtype).removeprefix("torch.")
    shape: dict[str, int | str] = {"C": hidden, "M": channels, "dtype": dtype}
    sizes = tile("outer_product_operands_backward_hopper", "sm_90", shape)
    width = padded(channels)
    rows = 1, ROWS.value, 1, width
    num_tiles = batch * num_res * triton.cdiv(num_seq, 2 * ROWS.value)
    programs = num_programs(num_tiles, m_BSNM.device)
    num_sums = 2 * hidden * (channels + 1)
    partial = torch.empty(programs, num_sums, dtype=torch.float32, device=m_BSNM.device)
    backward_hopper_kernel[(programs,)](
        tiles_of(m_BSNM, *rows),
        tiles_of(grad_2BNCS.flatten(1, 2), 2, 1, BLOCK_C.value, ROWS.value),
        tiles_of(through, *rows),
        tiles_of(grad_m, *rows),
        mask_BSN,
        norm_weight,
        *weights,
        partial,
        num_seq,
        num_res,
        hidden,
        mask_BSN.stride(),
        num_tiles,
        M=channels,
        EPS=EPS,
        BLOCK_M=width,
        **sizes,
    )
    return partial
