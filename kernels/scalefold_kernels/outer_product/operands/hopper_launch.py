"""Launches of the operands' kernels for Hopper GPUs (H100, H200), and what these serve."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.gluon import ROWS
from scalefold_kernels.norm.op import EPS
from scalefold_kernels.outer_product.operands.hopper.backward import backward_hopper_kernel
from scalefold_kernels.outer_product.operands.hopper.forward import forward_hopper_kernel
from scalefold_kernels.outer_product.operands.hopper.parts import BLOCK_C
from scalefold_kernels.outer_product.operands.launch import Parameters
from scalefold_kernels.tiles import tile
from scalefold_kernels.tma import VECTOR, num_ctas, padded, reachable, tiles_of

MIN_CHANNELS = 33
"""Half of the rows' width in shared memory, 64 at least."""


def serves(m_BSNM: Tensor, *others: Tensor | None) -> bool:
    """Whether the kernels, on a Hopper GPU, can take the arguments."""
    num_seq, _, channels = m_BSNM.shape[1:]
    return (
        m_BSNM.dtype == torch.bfloat16
        and channels >= MIN_CHANNELS
        and channels % VECTOR == 0
        and num_seq % VECTOR == 0
        and all(x is not None and reachable(x) for x in (m_BSNM, *others))
    )


def forward(m_BSNM: Tensor, mask_BSN: Tensor, parameters: Parameters, out_2BNCS: Tensor) -> None:
    """Fill both operands."""
    norm_weight, norm_bias, weight_a, bias_a, weight_b, bias_b = parameters
    programs, sizes, constexprs = _shape("forward", m_BSNM, mask_BSN, weight_a)
    forward_hopper_kernel[(programs,)](
        tiles_of(m_BSNM, *_rows(m_BSNM)),
        _by_sequences(out_2BNCS),
        mask_BSN,
        norm_weight,
        norm_bias,
        weight_a,
        weight_b,
        bias_a,
        bias_b,
        *sizes,
        **constexprs,
    )


def partial_sums(
    grad_2BNCS: Tensor,
    m_BSNM: Tensor,
    mask_BSN: Tensor,
    norm_weight: Tensor,
    weights: tuple[Tensor, Tensor],
    through: Tensor,
    grad_m: Tensor,
) -> Tensor:
    """Fill the gradient of m; returns ``partial`` of `kernel.backward_kernel`."""
    hidden, channels = weights[0].shape
    programs, sizes, constexprs = _shape("backward", m_BSNM, mask_BSN, weights[0])
    num_sums = 2 * hidden * (channels + 1)
    partial = torch.empty(programs, num_sums, dtype=torch.float32, device=m_BSNM.device)
    backward_hopper_kernel[(programs,)](
        tiles_of(m_BSNM, *_rows(m_BSNM)),
        _by_sequences(grad_2BNCS),
        tiles_of(through, *_rows(through)),
        tiles_of(grad_m, *_rows(grad_m)),
        mask_BSN,
        norm_weight,
        *weights,
        partial,
        *sizes,
        **constexprs,
    )
    return partial


def _rows(m_BSNM: Tensor) -> tuple[int, ...]:
    """A warp group's block of the MSA representation."""
    return 1, ROWS.value, 1, padded(m_BSNM.shape[-1])


def _by_sequences(x_2BNCS: Tensor) -> TensorDescriptor:
    """A warp group's blocks of both operands."""
    return tiles_of(x_2BNCS.flatten(1, 2), 2, 1, BLOCK_C.value, ROWS.value)


def _shape(
    direction: str, m_BSNM: Tensor, mask_BSN: Tensor, weight: Tensor
) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
    """Number of programs; last arguments of both kernels, and constants."""
    batch, num_seq, num_res, channels = m_BSNM.shape
    hidden = len(weight)
    dtype = str(m_BSNM.dtype).removeprefix("torch.")
    shape: dict[str, int | str] = {"C": hidden, "M": channels, "dtype": dtype}
    tiles = tile(f"outer_product_operands_{direction}_hopper", "sm_90", shape)
    num_tiles = batch * num_res * triton.cdiv(num_seq, 2 * ROWS.value)
    sizes = num_seq, num_res, hidden, mask_BSN.stride(), num_tiles
    constexprs = {"M": channels, "EPS": EPS, "BLOCK_M": padded(channels), **tiles}
    return num_ctas(num_tiles, m_BSNM.device), sizes, constexprs
