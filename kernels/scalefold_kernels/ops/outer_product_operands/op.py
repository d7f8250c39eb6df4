"""``scalefold::outer_product_operands``: layer normalisation, two projections, mask.

Only the sizes that the kernels take are this op. For others, `normed_projection` is used and is
reported, and the mask is multiplied by torch.

Legend: B samples, S sequences, N residues, M channels of the MSA representation, C hidden channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.backends import TRITON, Backends
from scalefold_kernels.checks import check_shapes
from scalefold_kernels.ops.norm.op import check_norm
from scalefold_kernels.ops.normed_projection import normed_projection
from scalefold_kernels.ops.outer_product_operands import triton
from scalefold_kernels.packing import join, unpack

_BACKENDS = Backends("outer_product_operands", __package__, TRITON)


def outer_product_operands(
    m_BSNM: Tensor,
    mask_BSN: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight_a: Tensor,
    bias_a: Tensor,
    weight_b: Tensor,
    bias_b: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer normalisation of m, two linear maps of its result, times the mask; and m itself.

    Both operands are in memory as (B, N, C, S), as `outer_product_mean` reads them fastest. Nothing
    but the arguments is kept for backward. The gradient of the m that is returned is added in the
    kernel that makes the rest of m's gradient.

    Returns
    -------
    a, b : Tensor, shape (B, S, N, C)
    m : Tensor, shape (B, S, N, M)
    """
    parameters = norm_weight, norm_bias, weight_a, bias_a, weight_b, bias_b
    _check(m_BSNM, mask_BSN, parameters)
    if triton.why_not("forward", m_BSNM, weight_a) is not None:
        a, b, m = normed_projection(
            m_BSNM, norm_weight, norm_bias, [weight_a, weight_b], [bias_a, bias_b]
        )
        mask = mask_BSN[..., None].to(m.dtype)
        return a * mask, b * mask, m
    return _Operands.apply(m_BSNM, mask_BSN, *parameters)


class _Operands(torch.autograd.Function):
    """A function, and no autograd of the operator: one of the results is m itself."""

    @staticmethod
    def forward(ctx: Any, m: Tensor, mask: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        operands = _outer_product_operands(m, mask, parameters)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(m, mask, *parameters)
        return *(operand.permute(0, 3, 1, 2) for operand in operands.unbind()), m

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        m, mask, *parameters = ctx.saved_tensors
        grad_a, grad_b, through = grads
        if grad_a is None and grad_b is None:
            return through, *[None] * 7
        shape = *m.shape[:3], len(parameters[2])
        both = [m.new_zeros(shape) if grad is None else grad for grad in (grad_a, grad_b)]
        grad = join([grad.permute(0, 2, 3, 1)[None] for grad in both], 0)
        grad_m, flat_grad = _outer_product_operands_backward(grad, m, mask, parameters, through)
        return grad_m, None, *unpack(flat_grad, parameters)


@torch.library.custom_op("scalefold::outer_product_operands", mutates_args=())
def _outer_product_operands(m_BSNM: Tensor, mask_BSN: Tensor, parameters: list[Tensor]) -> Tensor:
    """Both operands, (2, B, N, C, S); parameters in the order of `triton.Parameters.of`."""
    operands = _operands(m_BSNM, mask_BSN, parameters)
    if operands.numel():
        backend = _BACKENDS.choose("forward", m_BSNM.device, m_BSNM, parameters[2])
        backend.forward(m_BSNM, mask_BSN, triton.Parameters.of(*parameters), operands)
    return operands


@_outer_product_operands.register_fake
def _operands(m_BSNM: Tensor, mask_BSN: Tensor, parameters: list[Tensor]) -> Tensor:
    batch, num_seq, num_res, _ = m_BSNM.shape
    return m_BSNM.new_empty(2, batch, num_res, parameters[2].shape[0], num_seq)


@torch.library.custom_op("scalefold::outer_product_operands_backward", mutates_args=())
def _outer_product_operands_backward(
    grad_2BNCS: Tensor,
    m_BSNM: Tensor,
    mask_BSN: Tensor,
    parameters: list[Tensor],
    through: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradient of m; of all parameters in their order, a vector."""
    grad_m, flat_grad = _gradients(grad_2BNCS, m_BSNM, mask_BSN, parameters, through)
    if not m_BSNM.numel():
        return grad_m, flat_grad.zero_()
    grad, through = grad_2BNCS.contiguous(), None if through is None else through.contiguous()
    given = triton.Parameters.of(*parameters)
    backend = _BACKENDS.choose("backward", m_BSNM.device, m_BSNM, parameters[2])
    backend.backward(grad, m_BSNM, mask_BSN, given, through, grad_m, flat_grad)
    return grad_m, flat_grad


@_outer_product_operands_backward.register_fake
def _gradients(
    _grad: Tensor, m_BSNM: Tensor, _mask: Tensor, parameters: list[Tensor], _: Tensor | None
) -> tuple[Tensor, Tensor]:
    size = sum(parameter.numel() for parameter in parameters)
    return m_BSNM.new_empty(m_BSNM.shape), parameters[0].new_empty(size)


def _check(m_BSNM: Tensor, mask_BSN: Tensor, parameters: Sequence[Tensor]) -> None:
    check_norm(m_BSNM, *parameters[:2])
    channels, hidden = m_BSNM.shape[-1], len(parameters[2])
    shapes = [(channels,)] * 2 + [(hidden, channels), (hidden,)] * 2
    named = zip(triton.Parameters._fields, parameters, shapes, strict=True)
    call = f"outer_product_operands of m {tuple(m_BSNM.shape)}"
    check_shapes(call, [("mask", mask_BSN, m_BSNM.shape[:3]), *named])
