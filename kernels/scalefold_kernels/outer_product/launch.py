"""What both ways of computing the outer product mean share."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from scalefold_kernels.outer_product.kernel import (
    mask_kernel,
    mean_gradient_kernel,
    sum_parts_kernel,
)
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import architecture, tile

EPS = 1e-3
"""Added to the number of sequences that two residues share."""


class Sizes(NamedTuple):
    """What the tables of tiles speak of."""

    num_seq: int
    num_res: int
    channels: int
    pair_channels: int

    @classmethod
    def of(cls, operand_SNC: Tensor, weight: Tensor) -> Sizes:
        """From one of the operands and the weight."""
        num_seq, num_res, channels = operand_SNC.shape
        return cls(num_seq, num_res, channels, weight.shape[0])


def precision(x: Tensor) -> str:
    """How products of float32 are made; of no consequence for narrower types."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


def block(size: int) -> int:
    """Smallest block that holds ``size`` and that a matrix product takes."""
    return max(16, triton.next_power_of_2(size))


def launch_tile(kernel: str, sizes: Sizes, like: Tensor) -> dict[str, int]:
    """Tile of a kernel for a tensor's device and type."""
    shape = dict(zip("SNCZ", sizes, strict=True))
    dtype = str(like.dtype).removeprefix("torch.")
    return tile(kernel, architecture(like.device), {**shape, "dtype": dtype})


def num_splits(programs: int, per_multiprocessor: int, most: int, device: torch.device) -> int:
    """Into how many parts a sum is split, so that the programs fill whole waves of the GPU.

    Each part is written and read once more, which counts for a hundredth of a wave.
    """
    slots = per_multiprocessor * _multiprocessors(device)
    options = range(1, min(most, 16) + 1)
    return min(options, key=lambda n: triton.cdiv(programs * n, slots) / n + 0.01 * n)


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 2  # so that the interpreter sees splits
    return torch.cuda.get_device_properties(device).multi_processor_count


def total(parts: list[Tensor]) -> Tensor:
    """Sum in float32, unless there is but one."""
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0, dtype=torch.float32)


def write_masked(
    x_SNC: Tensor, mask_SN: Tensor, out_SNC: Tensor, out_NCS: Tensor | None = None
) -> None:
    """``x`` times its mask into a contiguous tensor; and into another one with s last."""
    num_seq, num_res, channels = x_SNC.shape
    block_s = min(128, block(num_seq))
    grid = (num_res, triton.cdiv(num_seq, block_s))
    mask_kernel[grid](
        x_SNC,
        mask_SN,
        out_SNC,
        out_NCS,
        num_seq,
        num_res,
        channels,
        *x_SNC.stride(),
        *mask_SN.stride(),
        BLOCK_S=block_s,
        BLOCK_C=triton.next_power_of_2(channels),
    )


def sum_parts(parts_PWUV: Tensor, out_WUV: Tensor, mask_WV: Tensor | None = None) -> None:
    """Sum parts in their order, times a mask, into a tensor of any strides and type.

    Parameters
    ----------
    parts_PWUV : Tensor
        The last dimension contiguous.
    out_WUV : Tensor
    mask_WV : Tensor or None
    """
    _, size_w, size_u, size_v = parts_PWUV.shape
    # Small blocks: enough programs that each has few parts to wait for one after the other.
    block_v = min(16, triton.next_power_of_2(size_v))
    block_u = min(32, triton.next_power_of_2(size_u))
    grid = (size_w, triton.cdiv(size_u, block_u), triton.cdiv(size_v, block_v))
    sum_parts_kernel[grid](
        parts_PWUV,
        out_WUV,
        mask_WV,
        parts_PWUV.shape[0],
        size_u,
        size_v,
        *parts_PWUV.stride()[:3],
        *out_WUV.stride(),
        *((0, 0) if mask_WV is None else mask_WV.stride()),
        BLOCK_U=block_u,
        BLOCK_V=block_v,
        num_warps=2,
    )


def mean_gradient(grad_IJZ: Tensor, count_IJ: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the sum before the division by the count, and the bias's gradient (Z,)."""
    size_i, size_j, size_z = grad_IJZ.shape
    block_z = block(size_z)
    block_j = max(1, 8192 // block_z)
    blocks_j = triton.cdiv(size_j, block_j)
    out = torch.empty(grad_IJZ.shape, dtype=grad_IJZ.dtype, device=grad_IJZ.device)
    parts = torch.empty(size_i * blocks_j, size_z, dtype=torch.float32, device=grad_IJZ.device)
    mean_gradient_kernel[(blocks_j, size_i)](
        grad_IJZ,
        count_IJ,
        out,
        parts,
        size_j,
        size_z,
        *grad_IJZ.stride(),
        *count_IJ.stride(),
        EPS=EPS,
        BLOCK_J=block_j,
        BLOCK_Z=block_z,
        num_warps=4,
    )
    return out, sum_rows(parts, torch.float32)
