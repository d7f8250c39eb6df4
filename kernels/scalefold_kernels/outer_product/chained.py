"""Few sequences: both products in one kernel, the outer product never in memory.

One sample at a time. Legend as in `kernel`.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from scalefold_kernels.outer_product.kernel import (
    chained_products_kernel,
    weight_gradient_kernel,
)
from scalefold_kernels.outer_product.launch import (
    EPS,
    block,
    launch_tile,
    mean_gradient,
    num_splits,
    precision,
    sum_parts,
)

MAX_SEQUENCES = 128
MAX_PAIR_CHANNELS = 128
MAX_CHANNELS = 32
"""What a program's operands may take of shared memory and registers."""


def fits(num_seq: int, channels: int, pair_channels: int) -> bool:
    """Whether the kernels of this file take these sizes."""
    return (
        num_seq <= MAX_SEQUENCES and channels <= MAX_CHANNELS and pair_channels <= MAX_PAIR_CHANNELS
    )


def forward(
    a_SIC: Tensor,
    a_ICS: Tensor,
    b_SJC: Tensor,
    count_IJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_IJZ: Tensor,
    out_IJZ: Tensor,
) -> None:
    """Write the outer product mean of one sample, and ``a_ICS``: a with its sequences last.

    Operands are read fastest with the dimension that a product sums over last; backward needs both.
    """
    sum_parts(a_SIC.transpose(0, 1)[None], a_ICS.transpose(1, 2))
    channels = b_SJC.shape[2]
    _chained_products(
        a_ICS.permute(1, 0, 2),
        b_SJC.permute(1, 0, 2),
        weight.unflatten(1, (channels, channels)).permute(1, 2, 0),
        out_IJZ[None],
        launch_tile("outer_product_forward", b_SJC, weight),
        count_IJ,
        bias,
        z_IJZ,
    )


def backward(
    grad_IJZ: Tensor,
    a_SIC: Tensor,
    a_ICS: Tensor,
    b_SJC: Tensor,
    count_IJ: Tensor,
    weight: Tensor,
    grad_a_SIC: Tensor,
    grad_b_SJC: Tensor,
) -> tuple[Tensor, Tensor]:
    """Write the operands' gradients of one sample; returns partial sums of weight's and bias's.

    Returns
    -------
    weight : Tensor, shape (parts, C, D, Z), float32, Z contiguous
    bias : Tensor, shape (Z,), float32
    """
    channels = b_SJC.shape[2]
    grad, grad_bias = mean_gradient(grad_IJZ, count_IJ)
    weight_ZCD = weight.unflatten(1, (channels, channels))
    for first, second, third, out in (
        (grad.transpose(0, 1), weight_ZCD.permute(1, 0, 2), b_SJC.permute(1, 2, 0), grad_a_SIC),
        (grad, weight_ZCD.permute(2, 0, 1), a_SIC.permute(1, 2, 0), grad_b_SJC),
    ):
        sizes = launch_tile("outer_product_backward", b_SJC, weight)
        _operand_gradient(first, second, third, out, sizes)
    sizes = launch_tile("outer_product_weight", b_SJC, weight)
    return _weight_gradient(grad, a_ICS, b_SJC, sizes), grad_bias


def _operand_gradient(
    first_KXM: Tensor, second_YMD: Tensor, third_KDN: Tensor, out_NXY: Tensor, sizes: dict[str, int]
) -> None:
    per_multiprocessor = sizes.pop("RESIDENT")
    num_k, size_x, _ = first_KXM.shape
    size_y, _, size_d = second_YMD.shape
    blocks_y = triton.cdiv(size_y, max(1, sizes["COLUMNS"] // block(size_d)))
    programs = triton.cdiv(size_x, sizes["BLOCK_X"]) * blocks_y
    splits = num_splits(programs, per_multiprocessor, num_k, first_KXM.device)
    parts = torch.empty(
        (splits, size_x, size_y, third_KDN.shape[2]),
        dtype=torch.float32,
        device=first_KXM.device,
    )
    _chained_products(first_KXM, second_YMD, third_KDN, parts, sizes)
    sum_parts(parts, out_NXY.permute(1, 2, 0))


def _chained_products(
    first_KXM: Tensor,
    second_YMD: Tensor,
    third_KDN: Tensor,
    out_PXYN: Tensor,
    sizes: dict[str, int],
    count_XY: Tensor | None = None,
    bias_N: Tensor | None = None,
    z_XYN: Tensor | None = None,
) -> None:
    num_k, size_x, size_m = first_KXM.shape
    size_y, _, size_d = second_YMD.shape
    splits, _, _, size_n = out_PXYN.shape
    sizes = dict(sizes)
    block_d = block(size_d)
    block_y = max(1, sizes.pop("COLUMNS") // block_d)
    sizes.pop("RESIDENT", None)
    grid = (triton.cdiv(size_y, block_y), triton.cdiv(size_x, sizes["BLOCK_X"]), splits)
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
        **sizes,
    )


def _weight_gradient(grad: Tensor, a_ICS: Tensor, b_SJC: Tensor, sizes: dict[str, int]) -> Tensor:
    num_seq, size_j, channels = b_SJC.shape
    size_i, size_z = a_ICS.shape[0], grad.shape[2]
    per_multiprocessor = sizes.pop("RESIDENT")
    block_c = block(channels)
    block_d = max(1, sizes.pop("COLUMNS") // block_c)
    blocks_d, blocks_j = triton.cdiv(channels, block_d), triton.cdiv(size_j, sizes["BLOCK_J"])
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
        **sizes,
    )
    return parts.transpose(1, 2)
