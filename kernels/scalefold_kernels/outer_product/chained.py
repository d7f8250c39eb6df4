"""Few sequences: both products in one kernel, the outer product never in memory.

One sample at a time. Legend as in `kernel`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from torch import Tensor

from scalefold_kernels.gpu import runs_gluon
from scalefold_kernels.outer_product import portable
from scalefold_kernels.outer_product.launch import Chain, Gradients, Mean, Sizes, mean_gradient

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
    b_JCS: Tensor,
    count_IJ: Tensor,
    weight: Tensor,
    bias: Tensor,
    z_IJZ: Tensor,
    out_IJZ: Tensor,
) -> None:
    """Write the outer product mean of one sample."""
    sizes = Sizes.of(b_JCS, weight)
    weight_CDZ = _by_channels(weight, sizes).permute(1, 2, 0)
    chain = Chain(a_ICS.transpose(0, 1), b_JCS.transpose(1, 2), weight_CDZ)
    kernels = _kernels(sizes, a_ICS, b_JCS, weight, z_IJZ)
    kernels.mean(chain, Mean(count_IJ, bias, z_IJZ, out_IJZ), sizes)


def backward(
    grad_IJZ: Tensor,
    a_ICS: Tensor,
    b_JCS: Tensor,
    count_IJ: Tensor,
    weight: Tensor,
    grad_a_ICS: Tensor,
    grad_b_JCS: Tensor,
) -> Gradients:
    """Partial sums of one sample's gradients."""
    sizes = Sizes.of(b_JCS, weight)
    grad, bias_parts = mean_gradient(grad_IJZ, count_IJ)
    kernels = _kernels(sizes, grad, a_ICS, b_JCS, weight)
    weight_ZCD = _by_channels(weight, sizes)
    of_a = Chain(grad.transpose(0, 1), weight_ZCD.transpose(0, 1), b_JCS)
    of_b = Chain(grad, weight_ZCD.permute(2, 0, 1), a_ICS)
    parts = kernels.operand_gradients((of_a, of_b), sizes)
    operands = list(zip(parts, (grad_a_ICS, grad_b_JCS), strict=True))
    return Gradients(kernels.weight_gradient(grad, a_ICS, b_JCS, sizes), bias_parts, operands)


def _by_channels(weight: Tensor, sizes: Sizes) -> Tensor:
    return weight.unflatten(1, (sizes.channels, sizes.channels))


def _kernels(sizes: Sizes, *operands: Tensor) -> ModuleType:
    """Launches of the kernels for these sizes; ``operands`` have strides that are not ours."""
    if not runs_gluon(operands[0]):
        return portable
    module = _hopper_launch()
    return module if module.serves(sizes, *operands) else portable


@cache
def _hopper_launch() -> ModuleType:
    return import_module("scalefold_kernels.outer_product.hopper_launch")
