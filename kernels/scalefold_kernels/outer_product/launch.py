"""What both ways of computing the outer product mean share."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from scalefold_kernels.dot import block
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.limits import needs_int64
from scalefold_kernels.outer_product.kernel import mean_gradient_kernel
from scalefold_kernels.sums import sum_several
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
    def of(cls, operand_NCS: Tensor, weight: Tensor) -> Sizes:
        """From one of the operands and the weight."""
        num_res, channels, num_seq = operand_NCS.shape
        return cls(num_seq, num_res, channels, weight.shape[0])


class Chain(NamedTuple):
    """What two products in a chain are made of, see `kernel.chained_products_kernel`.

    Attributes
    ----------
    first : Tensor, shape (K, X, M)
    second : Tensor, shape (Y, M, D)
    third : Tensor, shape (K, D, N)
    """

    first: Tensor
    second: Tensor
    third: Tensor


class Mean(NamedTuple):
    """What the mean takes besides, and the result.

    Attributes
    ----------
    number : Tensor, shape (X, Y)
        Of sequences that two residues share.
    bias : Tensor, shape (N,)
    z, out : Tensor, shape (X, Y, N)
    """

    number: Tensor
    bias: Tensor
    z: Tensor
    out: Tensor


class Gradients(NamedTuple):
    """Partial sums of one sample's gradients, float32, their parts along the first dimension.

    Attributes
    ----------
    weight : Tensor, shape (parts, Z, C * C)
    bias : Tensor, shape (parts, Z)
    operands : list of (Tensor, Tensor)
        Parts of the operands' gradients, and where their sums belong; empty if they are there.
    """

    weight: Tensor
    bias: Tensor
    operands: list[tuple[Tensor, Tensor]]


def launch_tile(kernel: str, sizes: Sizes, like: Tensor) -> dict[str, int]:
    """Tile of a kernel for a tensor's device and type."""
    shape = dict(zip("SNCZ", sizes, strict=True))
    dtype = str(like.dtype).removeprefix("torch.")
    return tile(kernel, architecture(like.device), {**shape, "dtype": dtype})


def num_splits(programs: int, per_multiprocessor: int, most: int, device: torch.device) -> int:
    """Into how many parts a sum is split, so that the programs fill whole waves of the GPU.

    Each part is written and read once more, which counts for a hundredth of a wave.
    """
    slots = per_multiprocessor * num_sms(device)
    options = range(1, min(most, 16) + 1)
    return min(options, key=lambda n: triton.cdiv(programs * n, slots) / n + 0.01 * n)


def sum_gradients(samples: list[Gradients], weight: Tensor, bias: Tensor) -> None:
    """Fill the gradients of weight and bias, and each sample's operands'; in one launch."""
    sums = [  # the longest ones first, since few programs have them
        (_joined([sample.bias for sample in samples]), bias),
        (_joined([sample.weight for sample in samples]), weight),
        *(pair for sample in samples for pair in sample.operands),
    ]
    sum_several([parts.flatten(1) for parts, _ in sums], [out for _, out in sums])


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def mean_gradient(grad_IJZ: Tensor, count_IJ: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of the sum before the division by the count; parts of the bias's, (parts, Z)."""
    size_i, size_j, size_z = grad_IJZ.shape
    block_z = block(size_z)
    block_j = max(1, 4096 // block_z)
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
        INT64=needs_int64(grad_IJZ),
        BLOCK_J=block_j,
        BLOCK_Z=block_z,
        num_warps=2,
    )
    return out, parts
