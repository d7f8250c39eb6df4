"""Launches of the chained kernels for any GPU and type. One sample; legend as in `kernel`."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from scalefold_kernels.dot import block, precision
from scalefold_kernels.limits import needs_int64
from scalefold_kernels.outer_product.kernel import chained_products_kernel, weight_gradient_kernel
from scalefold_kernels.outer_product.launch import (
    EPS,
    Chain,
    Mean,
    Sizes,
    launch_tile,
    num_splits,
)


def mean(chain: Chain, mean: Mean, sizes: Sizes) -> None:
    """Fill the forward's result."""
    tile = launch_tile("outer_product_forward", sizes, mean.z)
    _chained_products(chain, mean.out[None], tile, mean)


def operand_gradients(chains: tuple[Chain, Chain], sizes: Sizes) -> list[Tensor]:
    """Partial sums over k of both, (parts, X, Y, N), float32."""
    return [_operand_gradient(chain, sizes) for chain in chains]


def weight_gradient(grad_IJZ: Tensor, a_ICS: Tensor, b_JCS: Tensor, sizes: Sizes) -> Tensor:
    """Partial sums of the weight's gradient, (parts, Z, C * C), float32."""
    tile = launch_tile("outer_product_weight", sizes, grad_IJZ)
    size_i, size_j, size_z = grad_IJZ.shape
    num_seq, _, channels, _ = sizes
    per_multiprocessor = tile.pop("RESIDENT")
    block_d = block(channels)
    block_c = max(1, tile.pop("COLUMNS") // block_d)
    blocks_c, blocks_i = triton.cdiv(channels, block_c), triton.cdiv(size_i, tile["BLOCK_I"])
    splits = num_splits(blocks_c * blocks_i, per_multiprocessor, size_j, grad_IJZ.device)
    shape = splits * blocks_i, size_z, channels**2
    parts = torch.empty(shape, dtype=torch.float32, device=grad_IJZ.device)
    weight_gradient_kernel[(blocks_c, blocks_i, splits)](
        a_ICS,
        b_JCS,
        grad_IJZ,
        parts,
        num_seq,
        size_i,
        size_j,
        channels,
        size_z,
        *a_ICS.stride(),
        *b_JCS.stride(),
        triton.cdiv(size_j, splits),
        PRECISION=precision(grad_IJZ.dtype),
        BLOCK_S=block(num_seq),
        BLOCK_C=block_c,
        BLOCK_D=block_d,
        BLOCK_Z=block(size_z),
        **tile,
    )
    return parts


def _operand_gradient(chain: Chain, sizes: Sizes) -> Tensor:
    # So that the weight is read by whole rows in both.
    chain = chain._replace(second=chain.second.contiguous())
    first_KXM, second_YMD, third_KDN = chain
    tile = launch_tile("outer_product_backward", sizes, first_KXM)
    per_multiprocessor = tile.pop("RESIDENT")
    num_k, size_x, _ = first_KXM.shape
    size_y, _, size_d = second_YMD.shape
    blocks_y = triton.cdiv(size_y, max(1, tile["COLUMNS"] // block(size_d)))
    programs = triton.cdiv(size_x, tile["BLOCK_X"]) * blocks_y
    splits = num_splits(programs, per_multiprocessor, num_k, first_KXM.device)
    shape = splits, size_x, size_y, third_KDN.shape[2]
    parts = torch.empty(shape, dtype=torch.float32, device=first_KXM.device)
    _chained_products(chain, parts, tile)
    return parts


def _chained_products(
    chain: Chain, out_PXYN: Tensor, tile: dict[str, int], mean: Mean | None = None
) -> None:
    num_k, size_x, size_m = chain.first.shape
    size_y, _, size_d = chain.second.shape
    splits, _, _, size_n = out_PXYN.shape
    tile = dict(tile)
    block_d = block(size_d)
    block_y = max(1, tile.pop("COLUMNS") // block_d)
    grid = (triton.cdiv(size_y, block_y), triton.cdiv(size_x, tile["BLOCK_X"]), splits)
    count, bias, z, _ = mean or (None, None, None, None)
    chained_products_kernel[grid](
        *chain,
        out_PXYN,
        count,
        bias,
        z,
        size_x,
        size_y,
        size_m,
        size_d,
        size_n,
        num_k,
        *(stride for operand in chain for stride in operand.stride()),
        *out_PXYN.stride(),
        *((0, 0) if count is None else count.stride()),
        *((0, 0, 0) if z is None else z.stride()),
        triton.cdiv(num_k, splits),
        EPS=EPS,
        MEAN=mean is not None,
        INT64=needs_int64(z),
        PRECISION=precision(chain.first.dtype),
        BLOCK_Y=block_y,
        BLOCK_M=block(size_m),
        BLOCK_D=block_d,
        BLOCK_N=block(size_n),
        **tile,
    )
