"""Launches of the chained products' kernels for Hopper GPUs (H100, H200), and what these serve.

One sample; legend as in `kernel`, blocks as in `hopper`.
"""

from __future__ import annotations

from math import prod

import torch
import triton
from torch import Tensor

from scalefold_kernels.gpu import num_sms
from scalefold_kernels.outer_product.hopper.chained import chained_products_kernel
from scalefold_kernels.outer_product.hopper.weight_gradient import weight_gradient_kernel
from scalefold_kernels.outer_product.launch import (
    EPS,
    Chain,
    Mean,
    Sizes,
    launch_tile,
    num_splits,
)
from scalefold_kernels.tma import VECTOR, reachable, tiles_of

_BLOCK_X, _BLOCK_Y, _GROUP_Y = 64, 4, 2
_SIZE_D, _SIZE_M, _SIZE_N = 32, 128, 128
_BLOCK_I, _BLOCK_C, _GROUP_C, _PAIR = 32, 8, 4, 2


def serves(sizes: Sizes, *operands: Tensor) -> bool:
    """Whether these kernels, on a Hopper GPU, can take the sizes and operands."""
    lengths = sizes.num_seq, sizes.channels, sizes.pair_channels
    return all(size > 0 and size % VECTOR == 0 for size in lengths) and all(
        x.dtype == torch.bfloat16 and reachable(x) for x in operands
    )


def mean(chain: Chain, mean: Mean, sizes: Sizes) -> None:
    """Fill the forward's result."""
    first_KXM, second_YMD, third_KDN = chain
    first = tiles_of(first_KXM, 1, _BLOCK_X, _SIZE_M)
    third = tiles_of(third_KDN.permute(2, 0, 1), _SIZE_N, 1, _SIZE_D)
    whole = _BLOCK_X, 1, _SIZE_N
    tiling = *_num_blocks(chain), 1, len(first_KXM)
    chained_products_kernel[(min(prod(_num_blocks(chain)), num_sms(mean.out.device)),)](
        first,
        third,
        first,
        third,
        tiles_of(second_YMD.transpose(1, 2), _GROUP_Y, _SIZE_D, _SIZE_M),
        tiles_of(mean.z, *whole),
        tiles_of(mean.out, *whole),
        second_YMD,
        mean.out,
        mean.out,
        mean.number,
        mean.bias,
        _shape(chain),
        second_YMD.stride(),
        tiling,
        tiling,
        mean.number.stride(),
        EPS=EPS,
        MEAN=True,
        **launch_tile("outer_product_chained_hopper", sizes, first_KXM),
    )


def operand_gradients(chains: tuple[Chain, Chain], sizes: Sizes) -> list[Tensor]:
    """Partial sums over k, (parts, X, Y, N), float32; what is x for one is k for the other."""
    device = chains[0].first.device
    num_blocks = [_num_blocks(chain) for chain in chains]
    programs = sum(map(prod, num_blocks))
    splits = [_splits(programs, len(chain.first), device) for chain in chains]
    tilings = [(*n, *split) for n, split in zip(num_blocks, splits, strict=True)]
    num_tiles = sum(num_x * num_y * num_parts for num_x, num_y, num_parts, _ in tilings)
    parts = [
        torch.empty(
            num_parts,
            chain.first.shape[1],
            len(chain.second),
            chain.third.shape[2],
            dtype=torch.float32,
            device=device,
        )
        for chain, (num_parts, _) in zip(chains, splits, strict=True)
    ]
    # Of the right block for what is not looked at.
    unused = tiles_of(chains[0].first, _BLOCK_X, 1, _SIZE_N)
    chained_products_kernel[(min(num_tiles, num_sms(device)),)](
        tiles_of(chains[0].first, 1, _BLOCK_X, _SIZE_M),
        tiles_of(chains[0].third, 1, _SIZE_D, _SIZE_N),
        tiles_of(chains[1].first, 1, _BLOCK_X, _SIZE_M),
        tiles_of(chains[1].third, 1, _SIZE_D, _SIZE_N),
        unused,
        unused,
        unused,
        chains[0].second,
        *parts,
        parts[0],
        parts[0],
        _shape(chains[0]),
        chains[0].second.stride(),
        *tilings,
        (0, 0),
        EPS=EPS,
        MEAN=False,
        **launch_tile("outer_product_chained_hopper", sizes, chains[0].first),
    )
    return parts


def weight_gradient(grad_IJZ: Tensor, a_ICS: Tensor, b_JCS: Tensor, sizes: Sizes) -> Tensor:
    """Partial sums of the weight's gradient, (parts, Z, C * C), float32."""
    size_i, size_j, size_z = grad_IJZ.shape
    channels = sizes.channels
    blocks = triton.cdiv(channels, _BLOCK_C), triton.cdiv(size_i, _BLOCK_I)
    num_pairs = triton.cdiv(size_j, _PAIR)
    splits, pairs = _splits(blocks[0] * blocks[1], num_pairs, grad_IJZ.device)
    shape = splits * blocks[1], size_z, channels**2
    parts = torch.empty(shape, dtype=torch.float32, device=grad_IJZ.device)
    weight_gradient_kernel[(*blocks, splits)](
        tiles_of(a_ICS.transpose(0, 1), _GROUP_C, _BLOCK_I, _SIZE_M),
        tiles_of(b_JCS, _PAIR, _SIZE_D, _SIZE_M),
        tiles_of(grad_IJZ.transpose(0, 1), 1, _BLOCK_I, _SIZE_N // 2),
        parts,
        channels,
        size_z,
        size_j,
        _PAIR * pairs,
        **launch_tile("outer_product_weight_hopper", sizes, grad_IJZ),
    )
    return parts


def _num_blocks(chain: Chain) -> tuple[int, int]:
    """Of x and of y."""
    size_x, size_y = chain.first.shape[1], len(chain.second)
    return triton.cdiv(size_x, _BLOCK_X), triton.cdiv(size_y, _BLOCK_Y)


def _shape(chain: Chain) -> tuple[int, ...]:
    """Sizes of x, y, m, d, n, k."""
    num_k, size_x, _ = chain.first.shape
    return size_x, *chain.second.shape, chain.third.shape[2], num_k


def _splits(blocks: int, length: int, device: torch.device) -> tuple[int, int]:
    """Into how many parts a sum is split, none of them empty, and a part's length."""
    per_split = triton.cdiv(length, num_splits(blocks, 1, length, device))
    return triton.cdiv(length, per_split), per_split
