"""What `op` hands to the backends of the outer product mean, by name; and what these share.

Legend: B samples, S sequences, I/J residues, C hidden channels, Z channels of the pair
representation.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from scalefold_kernels.checks import check_shapes, check_types
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.sums import sum_several
from scalefold_kernels.tiles import tile_for

EPS = 1e-3
"""Added to the number of sequences that two residues share."""

MAX_SEQUENCES = 128
MAX_PAIR_CHANNELS = 128
MAX_CHANNELS = 32
"""What a CTA's operands may take of shared memory and registers."""

MAX_ELEMENTS = 1 << 27
"""Elements of the outer product in memory at a time: 256 MiB in bfloat16."""


class Sizes(NamedTuple):
    """What the tables of tiles speak of."""

    num_seq: int
    num_res: int
    channels: int
    pair_channels: int

    @classmethod
    def of(cls, operand_NCS: Tensor, weight: Tensor) -> Sizes:
        """Read the sizes off one of the operands and the weight."""
        num_res, channels, num_seq = operand_NCS.shape
        return cls(num_seq, num_res, channels, weight.shape[0])

    def too_large_for_chip(self) -> str | None:
        """Why the outer product cannot stay on the chip between the two products, or None."""
        most = MAX_SEQUENCES, MAX_CHANNELS, MAX_PAIR_CHANNELS
        found = self.num_seq, self.channels, self.pair_channels
        if all(size <= limit for size, limit in zip(found, most, strict=True)):
            return None
        return f"takes {most} sequences, channels and pair channels at most, found {found}"


class Chain(NamedTuple):
    """What two products in a chain are made of, see `triton.chained_products_kernel`."""

    first: Tensor  # (K, X, M)
    second: Tensor  # (Y, M, D)
    third: Tensor  # (K, D, N)


class Operands(NamedTuple):
    """Operands of `outer_product_mean`, in its order; backward needs no others."""

    a: Tensor  # (B, S, I, C)
    b: Tensor  # (B, S, J, C)
    number: Tensor  # (B, I, J)
    weight: Tensor  # (Z, C * C)
    bias: Tensor  # (Z,)


class Factors(NamedTuple):
    """Contiguous factors of one sample's outer product, and the weight that projects it."""

    a: Tensor  # (I, C, S)
    b: Tensor  # (J, C, S)
    weight: Tensor  # (Z, C * C)

    @property
    def sizes(self) -> Sizes:
        """What tiles are chosen by."""
        return Sizes.of(self.b, self.weight)


class Mean(NamedTuple):
    """Other inputs of one sample's mean, and its result."""

    number: Tensor  # of sequences that two residues share, (I, J)
    bias: Tensor  # (Z,)
    z: Tensor  # (I, J, Z)
    out: Tensor  # (I, J, Z)


class Gradients(NamedTuple):
    """Partial sums of one sample's gradients, float32, their parts along the first dimension.

    ``operands``: parts of their gradients, and where the sums belong; empty if they are there.
    """

    weight: Tensor  # (parts, Z, C * C)
    operands: list[tuple[Tensor, Tensor]]


def launch_tile(kernel: str, sizes: Sizes, like: Tensor) -> dict[str, int]:
    """Tile of a kernel for a tensor's device and type."""
    return tile_for(kernel, like, **dict(zip("SNCZ", sizes, strict=True)))


def num_splits(ctas: int, per_sm: int, most: int, device: torch.device) -> int:
    """Into how many parts a sum is split, so that the CTAs fill whole waves of the GPU.

    Each part is written and read once more, which counts for a hundredth of a wave.
    """
    slots = per_sm * num_sms(device)
    options = range(1, min(most, 16) + 1)
    return min(options, key=lambda n: triton.cdiv(ctas * n, slots) / n + 0.01 * n)


def even_splits(blocks: int, length: int, device: torch.device) -> tuple[int, int]:
    """Into how many parts a sum is split, none of them empty, and a part's length."""
    per_split = triton.cdiv(length, num_splits(blocks, 1, length, device))
    return triton.cdiv(length, per_split), per_split


def sum_gradients(
    samples: list[Gradients], bias_parts: list[Tensor], weight: Tensor, bias: Tensor
) -> None:
    """Fill the gradients of weight and bias, and each sample's operands'; in one launch."""
    sums = [  # the longest ones first, since few CTAs have them
        (joined(bias_parts), bias),
        (joined([sample.weight for sample in samples]), weight),
        *(pair for sample in samples for pair in sample.operands),
    ]
    sum_several([parts.flatten(1) for parts, _ in sums], [out for _, out in sums])


def joined(parts: list[Tensor]) -> Tensor:
    """Parts behind each other; no copy of a single one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def mean_chain(factors: Factors) -> Chain:
    """The products of the mean."""
    weight_CDZ = _by_channels(factors.weight).permute(1, 2, 0)
    return Chain(factors.a.transpose(0, 1), factors.b.transpose(1, 2), weight_CDZ)


def gradient_chains(grad_IJZ: Tensor, factors: Factors) -> tuple[Chain, Chain]:
    """The products of both operands' gradients."""
    weight_ZCD = _by_channels(factors.weight)
    of_a = Chain(grad_IJZ.transpose(0, 1), weight_ZCD.transpose(0, 1), factors.b)
    of_b = Chain(grad_IJZ, weight_ZCD.permute(2, 0, 1), factors.a)
    return of_a, of_b


def _by_channels(weight: Tensor) -> Tensor:
    channels = isqrt(weight.shape[1])
    return weight.unflatten(1, (channels, channels))


def check(given: Operands, z_BIJZ: Tensor) -> None:
    """Raise ValueError where the arguments do not fit each other, or the kernels."""
    a_BSIC, b_BSJC, count_BIJ, weight, bias = given
    batch, num_seq, size_i, channels = a_BSIC.shape
    size_j, size_z = b_BSJC.shape[2], weight.shape[0]
    named = (
        ("b", b_BSJC, (batch, num_seq, size_j, channels)),
        ("count", count_BIJ, (batch, size_i, size_j)),
        ("weight", weight, (size_z, channels * channels)),
        ("bias", bias, (size_z,)),
        ("z", z_BIJZ, (batch, size_i, size_j, size_z)),
    )
    check_shapes(f"outer_product_mean of a {tuple(a_BSIC.shape)}", named)
    check_types("outer_product_mean", (a_BSIC, b_BSJC, weight, bias, z_BIJZ))
