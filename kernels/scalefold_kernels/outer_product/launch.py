"""What both ways of computing the outer product mean share."""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor

from scalefold_kernels.outer_product.kernel import mean_gradient_kernel, sum_parts_kernel
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import architecture, tile

EPS = 1e-3
"""Added to the number of sequences that two residues share."""


def precision(x: Tensor) -> str:
    """How products of float32 are made; of no consequence for narrower types."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


def block(size: int) -> int:
    """Smallest block that holds ``size`` and that a matrix product takes."""
    return max(16, triton.next_power_of_2(size))


def launch_tile(kernel: str, a_SIC: Tensor, weight: Tensor) -> dict[str, int]:
    """Tile of a kernel for these operands."""
    num_seq, num_res, channels = a_SIC.shape
    shape = {"S": num_seq, "N": num_res, "C": channels, "Z": weight.shape[0]}
    dtype = str(a_SIC.dtype).removeprefix("torch.")
    return tile(kernel, architecture(a_SIC.device), {**shape, "dtype": dtype})


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


def sum_parts(parts_PWUV: Tensor, out_WUV: Tensor) -> None:
    """Sum parts in their order into a tensor of any strides and type; one part: a copy.

    Parameters
    ----------
    parts_PWUV : Tensor
        The last dimension contiguous.
    out_WUV : Tensor
    """
    _, size_w, size_u, size_v = parts_PWUV.shape
    if parts_PWUV.stride(3) != 1:
        parts_PWUV = parts_PWUV.contiguous()
    # Small blocks: enough programs that each has few parts to wait for one after the other.
    block_v = min(16 if len(parts_PWUV) > 1 else 64, triton.next_power_of_2(size_v))
    block_u = min(32, triton.next_power_of_2(size_u))
    grid = (size_w, triton.cdiv(size_u, block_u), triton.cdiv(size_v, block_v))
    sum_parts_kernel[grid](
        parts_PWUV,
        out_WUV,
        parts_PWUV.shape[0],
        size_u,
        size_v,
        *parts_PWUV.stride()[:3],
        *out_WUV.stride(),
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
        num_warps=8,
    )
    return out, sum_rows(parts, torch.float32)
