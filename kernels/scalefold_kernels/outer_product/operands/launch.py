"""Launches of the operands' kernels. Legend as in `op`."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from scalefold_kernels.dot import block, precision
from scalefold_kernels.limits import check_batch
from scalefold_kernels.norm.op import EPS
from scalefold_kernels.outer_product.operands.kernel import (
    backward_kernel,
    forward_kernel,
    parameters_kernel,
)
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import architecture, tile


class Parameters(NamedTuple):
    """Of the layer normalisation (M,); weights (C, M) and biases (C,). All contiguous."""

    norm_weight: Tensor
    norm_bias: Tensor
    weight_a: Tensor
    bias_a: Tensor
    weight_b: Tensor
    bias_b: Tensor

    @classmethod
    def of(cls, *parameters: Tensor) -> Parameters:
        """From tensors of any strides."""
        return cls(*(parameter.contiguous() for parameter in parameters))


def forward(m_BSNM: Tensor, mask_BSN: Tensor, parameters: Parameters, out_2BNCS: Tensor) -> None:
    """Fill both operands."""
    batch, num_seq, num_res, _ = m_BSNM.shape
    norm_weight, norm_bias, weight_a, bias_a, weight_b, bias_b = parameters
    launch, sizes = _tile("forward", m_BSNM, weight_a)
    check_batch("outer_product_operands", m_BSNM)
    forward_kernel[(num_res, triton.cdiv(num_seq, sizes["BLOCK_S"]), batch)](
        m_BSNM,
        mask_BSN,
        norm_weight,
        norm_bias,
        weight_a,
        weight_b,
        bias_a,
        bias_b,
        out_2BNCS,
        num_seq,
        num_res,
        len(weight_a),
        m_BSNM.stride(),
        mask_BSN.stride(),
        EPS=EPS,
        **sizes,
        **launch,
    )


def backward(
    grad_2BNCS: Tensor,
    m_BSNM: Tensor,
    mask_BSN: Tensor,
    parameters: Parameters,
    through: Tensor | None,
    grad_m: Tensor,
    gradients: Tensor,
) -> None:
    """Fill the gradient of m, and all parameters' in the order of `parameters_kernel`."""
    norm_weight, norm_bias, weight_a, _, weight_b, _ = parameters
    partial = _partial_sums(
        grad_2BNCS, m_BSNM, mask_BSN, norm_weight, (weight_a, weight_b), through, grad_m
    )
    hidden, channels = weight_a.shape
    columns = 16
    parameters_kernel[(triton.cdiv(channels, columns),)](
        sum_rows(partial, torch.float32),
        norm_weight,
        norm_bias,
        weight_a,
        weight_b,
        gradients,
        hidden,
        M=channels,
        BLOCK_C=block(hidden),
        BLOCK_M=columns,
    )


def _partial_sums(
    grad_2BNCS: Tensor,
    m_BSNM: Tensor,
    mask_BSN: Tensor,
    norm_weight: Tensor,
    weights: tuple[Tensor, Tensor],
    through: Tensor | None,
    grad_m: Tensor,
) -> Tensor:
    """Fill the gradient of m; returns ``partial`` of `backward_kernel`."""
    batch, num_seq, num_res, channels = m_BSNM.shape
    hidden = len(weights[0])
    launch, sizes = _tile("backward", m_BSNM, weights[0])
    num_blocks = batch * num_res * triton.cdiv(num_seq, sizes["BLOCK_S"])
    programs = min(launch.pop("PROGRAMS"), num_blocks)
    num_sums = 2 * hidden * (channels + 1)
    partial = torch.empty(programs, num_sums, dtype=torch.float32, device=m_BSNM.device)
    backward_kernel[(programs,)](
        grad_2BNCS,
        m_BSNM,
        mask_BSN,
        norm_weight,
        *weights,
        through,
        grad_m,
        partial,
        (batch, num_seq, num_res, hidden),
        m_BSNM.stride(),
        mask_BSN.stride(),
        EPS=EPS,
        PROGRAMS=programs,
        **sizes,
        **launch,
    )
    return partial


def _tile(direction: str, m: Tensor, weight: Tensor) -> tuple[dict[str, int], dict[str, int | str]]:
    """How a kernel is launched, and its sizes."""
    hidden, channels = weight.shape
    dtype = str(m.dtype).removeprefix("torch.")
    shape: dict[str, int | str] = {"C": hidden, "M": channels, "dtype": dtype}
    launch = tile(f"outer_product_operands_{direction}", architecture(m.device), shape)
    block_m = block(channels)
    return launch, {
        "M": channels,
        "PRECISION": precision(m.dtype),
        "BLOCK_S": max(16, launch.pop("ELEMENTS") // block_m),
        "BLOCK_C": block(hidden),
        "BLOCK_M": block_m,
    }
