"""Launches of the chained products' kernel for Hopper GPUs (H100, H200), and what these serve.

One sample; legend as in `kernel`, blocks as in `hopper.chained`.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.outer_product.hopper.chained import chained_products_kernel
from scalefold_kernels.outer_product.launch import EPS, Sizes, launch_tile, num_splits

_VECTOR = 8
"""bfloat16 elements in the 16 bytes at whose multiples the copy engine's rows start."""

_BLOCK_X, _BLOCK_Y = 64, 4
_SIZE_D, _SIZE_M, _SIZE_N = 32, 128, 128


def serves(sizes: Sizes, *operands: Tensor) -> bool:
    """Whether these kernels, on a Hopper GPU, can take the sizes and operands."""
    return all(
        size % _VECTOR == 0 for size in (sizes.num_seq, sizes.channels, sizes.pair_channels)
    ) and all(map(_reachable, operands))


def mean(
    first_KXM: Tensor,
    second_YMD: Tensor,
    third_KDN: Tensor,
    count_XY: Tensor,
    bias_N: Tensor,
    z_XYN: Tensor,
    out_XYN: Tensor,
    sizes: Sizes,
) -> None:
    """Fill the forward's result."""
    num_k, size_x, _ = first_KXM.shape
    size_y = second_YMD.shape[0]
    block = _BLOCK_X, 1, _SIZE_N
    chained_products_kernel[(triton.cdiv(size_y, _BLOCK_Y), triton.cdiv(size_x, _BLOCK_X), 1)](
        _tiles_of(first_KXM, 1, _BLOCK_X, _SIZE_M),
        _tiles_of(third_KDN.permute(2, 0, 1), _SIZE_N, 1, _SIZE_D),
        _tiles_of(z_XYN, *block),
        _tiles_of(out_XYN, *block),
        second_YMD,
        out_XYN,
        count_XY,
        bias_N,
        (size_x, *second_YMD.shape, third_KDN.shape[2]),
        second_YMD.stride(),
        (0, *out_XYN.stride()[:2]),
        count_XY.stride(),
        num_k,
        num_k,
        EPS=EPS,
        MEAN=True,
        **launch_tile("outer_product_chained_hopper", sizes, z_XYN),
    )


def operand_gradient(
    first_KXM: Tensor, second_YMD: Tensor, third_KDN: Tensor, sizes: Sizes
) -> Tensor:
    """Partial sums over k, (parts, X, Y, N), float32."""
    num_k, size_x, _ = first_KXM.shape
    size_y, size_n = second_YMD.shape[0], third_KDN.shape[2]
    blocks = triton.cdiv(size_y, _BLOCK_Y), triton.cdiv(size_x, _BLOCK_X)
    splits, k_per_split = _splits(blocks, num_k, first_KXM.device)
    shape = splits, size_x, size_y, size_n
    parts = torch.empty(shape, dtype=torch.float32, device=first_KXM.device)
    first = _tiles_of(first_KXM, 1, _BLOCK_X, _SIZE_M)
    # Of the right block for what is not looked at.
    unused = _tiles_of(first_KXM, _BLOCK_X, 1, _SIZE_N)
    chained_products_kernel[(*blocks, splits)](
        first,
        _tiles_of(third_KDN.permute(2, 0, 1), _SIZE_N, 1, _SIZE_D),
        unused,
        unused,
        second_YMD,
        parts,
        parts,
        parts,
        (size_x, *second_YMD.shape, size_n),
        second_YMD.stride(),
        parts.stride()[:3],
        (0, 0),
        num_k,
        k_per_split,
        EPS=EPS,
        MEAN=False,
        **launch_tile("outer_product_chained_hopper", sizes, first_KXM),
    )
    return parts


def _splits(blocks: tuple[int, int], length: int, device: torch.device) -> tuple[int, int]:
    """Into how many parts a sum is split, none of them empty, and a part's length."""
    wanted = num_splits(blocks[0] * blocks[1], 1, length, device)
    per_split = triton.cdiv(length, wanted)
    return triton.cdiv(length, per_split), per_split


def _tiles_of(x: Tensor, *block: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for(list(block), gl.bfloat16)
    return TensorDescriptor(x, [*x.shape], [*x.stride()], list(block), layout)


def _reachable(x: Tensor) -> bool:
    """Whether the copy engine can read it: bfloat16, contiguous at the end, 16-byte steps."""
    return (
        x.dtype == torch.bfloat16
        and x.stride(-1) == 1
        and all(stride % _VECTOR == 0 for stride in x.stride()[:-1])
        and x.data_ptr() % (2 * _VECTOR) == 0
    )
