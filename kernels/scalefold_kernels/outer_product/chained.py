"""Few sequences: both products in one kernel, the outer product never in memory.

One sample at a time. Legend as in `kernel`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from torch import Tensor

from scalefold_kernels.device import runs_gluon_for_hopper
from scalefold_kernels.outer_product import portable
from scalefold_kernels.outer_product.launch import Sizes, mean_gradient, sum_parts

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
    a_ICS: Tensor,
    b_SJC: Tensor,
    count_IJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_IJZ: Tensor,
    out_IJZ: Tensor,
) -> None:
    """Write the outer product mean of one sample.

    Operands are read fastest with the dimension that a product sums over last.
    """
    sizes = Sizes.of(b_SJC, weight)
    _kernels(sizes, z_IJZ).mean(
        a_ICS.permute(1, 0, 2),
        b_SJC.permute(1, 0, 2),
        _by_channels(weight, sizes).permute(1, 2, 0),
        count_IJ,
        bias,
        z_IJZ,
        out_IJZ,
        sizes,
    )


def backward(
    grad_IJZ: Tensor,
    a_SIC: Tensor,
    a_ICS: Tensor,
    b_SJC: Tensor,
    mask_SI: Tensor,
    mask_SJ: Tensor,
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
    sizes = Sizes.of(b_SJC, weight)
    kernels = _kernels(sizes, a_SIC)
    grad, grad_bias = mean_gradient(grad_IJZ, count_IJ)
    weight_ZCD = _by_channels(weight, sizes)
    first, second, third = grad.transpose(0, 1), weight_ZCD.permute(1, 0, 2), b_SJC
    parts = kernels.operand_gradient(first, second, third.permute(1, 2, 0), sizes)
    sum_parts(parts, grad_a_SIC.permute(1, 2, 0), mask_SI.t())
    # A copy, so that both readings of the weight are of whole rows.
    weight_ZDC = weight_ZCD.transpose(1, 2).contiguous()
    first, second, third = grad, weight_ZDC.permute(1, 0, 2), a_SIC
    parts = kernels.operand_gradient(first, second, third.permute(1, 2, 0), sizes)
    sum_parts(parts, grad_b_SJC.permute(1, 2, 0), mask_SJ.t())
    return portable.weight_gradient(grad, a_ICS, b_SJC, sizes), grad_bias


def _by_channels(weight: Tensor, sizes: Sizes) -> Tensor:
    return weight.unflatten(1, (sizes.channels, sizes.channels))


def _kernels(sizes: Sizes, *operands: Tensor) -> ModuleType:
    """Launches of the kernels for these sizes; ``operands`` have strides that are not ours."""
    if not runs_gluon_for_hopper(operands[0].device):
        return portable
    module = _hopper_launch()
    return module if module.serves(sizes, *operands) else portable


@cache
def _hopper_launch() -> ModuleType:
    return import_module("scalefold_kernels.outer_product.hopper_launch")
