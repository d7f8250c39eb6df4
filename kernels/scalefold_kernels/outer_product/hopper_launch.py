"""Launches of the chained products' kernels for Hopper GPUs (H100, H200), and what these serve.

One sample; legend as in `kernel`, blocks as in `hopper`.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from scalefold_kernels.copy_engine import VECTOR, reachable, tiles_of
from scalefold_kernels.outer_product.hopper.chained import chained_products_kernel
from scalefold_kernels.outer_product.hopper.weight_gradient import weight_gradient_kernel
from scalefold_kernels.outer_product.launch import (
    EPS,
    Chain,
    Mean,
    Sizes,
    launch_tile,
    multiprocessors,
    num_splits,
)

_BLOCK_X, _BLOCK_Y, _GROUP_Y = 64, 4, 2
_SIZE_D, _SIZE_M, _SIZE_N = 32, 128, 128
_BLOCK_I, _BLOCK_C, _GROUP_C, _PAIR = 32, 8, 4, 2


def serves(sizes: Sizes, *operands: Tensor) -> bool:
    """Whether these kernels, on a Hopper GPU, can take the sizes and operands."""
    return all(
        size % VECTOR == 0 for size in (sizes.num_seq, sizes.channels, sizes.pair_channels)
    ) and all(x.dtype == torch.bfloat16 and reachable(x) for x in operands)


def mean(chain: Chain, mean: Mean, sizes: Sizes) -> None:
    """Fill the forward's result."""
    _chained_products(chain, mean.out, 1, len(chain.first), sizes, mean)


def operand_gradient(chain: Chain, sizes: Sizes) -> Tensor:
    """Partial sums over k, (parts, X, Y, N), float32."""
    num_k, size_x, _ = chain.first.shape
    size_y, size_n = chain.second.shape[0], chain.third.shape[2]
    blocks = triton.cdiv(size_x, _BLOCK_X) * triton.cdiv(size_y, _BLOCK_Y)
    splits, k_per_split = _splits(blocks, num_k, chain.first.device)
    shape = splits, size_x, size_y, size_n
    parts = torch.empty(shape, dtype=torch.float32, device=chain.first.device)
    _chained_products(chain, parts, splits, k_per_split, sizes)
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


def _chained_products(
    chain: Chain,
    out: Tensor,
    splits: int,
    k_per_split: int,
    sizes: Sizes,
    mean: Mean | None = None,
) -> None:
    first_KXM, second_YMD, third_KDN = chain
    num_k, size_x, _ = first_KXM.shape
    num_x = triton.cdiv(size_x, _BLOCK_X)
    num_y = triton.cdiv(len(second_YMD), _BLOCK_Y)
    num_tiles = num_x * num_y * splits
    whole = _BLOCK_X, 1, _SIZE_N
    if mean is None:
        third = tiles_of(third_KDN, 1, _SIZE_D, _SIZE_N)
        # Of the right block for what is not looked at.
        second = z = result = tiles_of(first_KXM, *whole)
        count, bias = out, out
    else:
        third = tiles_of(third_KDN.permute(2, 0, 1), _SIZE_N, 1, _SIZE_D)
        second = tiles_of(second_YMD.transpose(1, 2), _GROUP_Y, _SIZE_D, _SIZE_M)
        z, result = tiles_of(mean.z, *whole), tiles_of(mean.out, *whole)
        count, bias = mean.number, mean.bias
    chained_products_kernel[(min(num_tiles, multiprocessors(out.device)),)](
        tiles_of(first_KXM, 1, _BLOCK_X, _SIZE_M),
        second,
        third,
        z,
        result,
        second_YMD,
        out,
        count,
        bias,
        (size_x, *second_YMD.shape, third_KDN.shape[2]),
        second_YMD.stride(),
        out.stride()[-4:-1] if mean is None else (0, *out.stride()[:2]),
        (0, 0) if mean is None else count.stride(),
        (num_x, num_y, num_tiles),
        num_k,
        k_per_split,
        EPS=EPS,
        MEAN=mean is not None,
        **launch_tile("outer_product_chained_hopper", sizes, first_KXM),
    )


def _splits(blocks: int, length: int, device: torch.device) -> tuple[int, int]:
    """Into how many parts a sum is split, none of them empty, and a part's length."""
    per_split = triton.cdiv(length, num_splits(blocks, 1, length, device))
    return triton.cdiv(length, per_split), per_split
