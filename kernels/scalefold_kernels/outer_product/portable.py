"""Launches of the chained kernels for any GPU and type. One sample; legend as in `kernel`."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from scalefold_kernels.outer_product.kernel import chained_products_kernel, weight_gradient_kernel
from scalefold_kernels.outer_product.launch import (
    EPS,
    Sizes,
    block,
    launch_tile,
    num_splits,
    precision,
)


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
    tile = launch_tile("outer_product_forward", sizes, z_XYN)
    operands = first_KXM, second_YMD, third_KDN
    _chained_products(*operands, out_XYN[None], tile, count_XY, bias_N, z_XYN)


def operand_gradient(
    first_KXM: Tensor, second_YMD: Tensor, third_KDN: Tensor, sizes: Sizes
) -> Tensor:
    """Partial sums over k, (parts, X, Y, N), float32."""
    tile = launch_tile("outer_product_backward", sizes, first_KXM)
    per_multiprocessor = tile.pop("RESIDENT")
    num_k, size_x, _ = first_KXM.shape
    size_y, _, size_d = second_YMD.shape
    blocks_y = triton.cdiv(size_y, max(1, tile["COLUMNS"] // block(size_d)))
    programs = triton.cdiv(size_x, tile["BLOCK_X"]) * blocks_y
    splits = num_splits(programs, per_multiprocessor, num_k, first_KXM.device)
    parts = torch.empty(
        (splits, size_x, size_y, third_KDN.shape[2]),
        dtype=torch.float32,
        device=first_KXM.device,
    )
    _chained_products(first_KXM, second_YMD, third_KDN, parts, tile)
    return parts


def weight_gradient(grad: Tensor, a_ICS: Tensor, b_SJC: Tensor, sizes: Sizes) -> Tensor:
    """Partial sums of the weight's gradient, (parts, C, D, Z), float32, Z contiguous."""
    tile = launch_tile("outer_product_weight", sizes, grad)
    num_seq, size_j, channels = b_SJC.shape
    size_i, size_z = a_ICS.shape[0], grad.shape[2]
    per_multiprocessor = tile.pop("RESIDENT")
    block_c = block(channels)
    block_d = max(1, tile.pop("COLUMNS") // block_c)
    blocks_d, blocks_j = triton.cdiv(channels, block_d), triton.cdiv(size_j, tile["BLOCK_J"])
    splits = num_splits(blocks_d * blocks_j, per_multiprocessor, size_i, grad.device)
    parts = torch.empty(
        (splits * blocks_j, channels, channels, size_z), dtype=torch.float32, device=grad.device
    )
    a = a_ICS.permute(2, 0, 1)
    weight_gradient_kernel[(blocks_d, blocks_j, splits)](
        a,
        b_SJC,
        grad,
        parts,
        num_seq,
        size_i,
        size_j,
        channels,
        size_z,
        *a.stride(),
        *b_SJC.stride(),
        triton.cdiv(size_i, splits),
        PRECISION=precision(grad),
        BLOCK_S=block(num_seq),
        BLOCK_D=block_d,
        BLOCK_C=block_c,
        BLOCK_Z=block(size_z),
        **tile,
    )
    return parts.transpose(1, 2)


def _chained_products(
    first_KXM: Tensor,
    second_YMD: Tensor,
    third_KDN: Tensor,
    out_PXYN: Tensor,
    tile: dict[str, int],
    count_XY: Tensor | None = None,
    bias_N: Tensor | None = None,
    z_XYN: Tensor | None = None,
) -> None:
    num_k, size_x, size_m = first_KXM.shape
    size_y, _, size_d = second_YMD.shape
    splits, _, _, size_n = out_PXYN.shape
    tile = dict(tile)
    block_d = block(size_d)
    block_y = max(1, tile.pop("COLUMNS") // block_d)
    tile.pop("RESIDENT", None)
    grid = (triton.cdiv(size_y, block_y), triton.cdiv(size_x, tile["BLOCK_X"]), splits)
    chained_products_kernel[grid](
        first_KXM,
        second_YMD,
        third_KDN,
        out_PXYN,
        count_XY,
        bias_N,
        z_XYN,
        size_x,
        size_y,
        size_m,
        size_d,
        size_n,
        num_k,
        *first_KXM.stride(),
        *second_YMD.stride(),
        *third_KDN.stride(),
        *out_PXYN.stride(),
        *((0, 0) if count_XY is None else count_XY.stride()),
        *((0, 0, 0) if z_XYN is None else z_XYN.stride()),
        triton.cdiv(num_k, splits),
        EPS=EPS,
        MEAN=count_XY is not None,
        PRECISION=precision(first_KXM),
        BLOCK_Y=block_y,
        BLOCK_M=block(size_m),
        BLOCK_D=block_d,
        BLOCK_N=block(size_n),
        **tile,
    )
