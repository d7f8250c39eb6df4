"""Triangle multiplication in its three parts (Suppl. Alg. 11, 12): reference in plain torch.

Projection, product and output are apart because exchanges between ranks go between them.
Legend: B samples, I/J/K residues, Z channels of the pair representation, C hidden channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.ops.dropout import Dropout, residual_dropout
from scalefold.ops.norm import layer_norm


def triangle_projection(
    z_BIJZ: Tensor,
    mask_BIJ: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    a_weight: Tensor,
    a_bias: Tensor,
    a_gate_weight: Tensor,
    a_gate_bias: Tensor,
    b_weight: Tensor,
    b_bias: Tensor,
    b_gate_weight: Tensor,
    b_gate_bias: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lines 1-3: both operands, masked, and the output gate before its sigmoid; and z itself.

    The residual sum takes the returned z. A kernel then adds its gradient to z's while it has that
    in registers.

    Returns
    -------
    a, b : Tensor, shape (B, I, J, C)
    gate, z : Tensor, shape (B, I, J, Z)
    """
    normed = layer_norm(z_BIJZ, norm_weight, norm_bias)
    mask = mask_BIJ[..., None].to(normed.dtype)
    a_gate = torch.sigmoid(functional.linear(normed, a_gate_weight, a_gate_bias))
    b_gate = torch.sigmoid(functional.linear(normed, b_gate_weight, b_gate_bias))
    a = mask * a_gate * functional.linear(normed, a_weight, a_bias)
    b = mask * b_gate * functional.linear(normed, b_weight, b_bias)
    return a, b, functional.linear(normed, gate_weight, gate_bias), z_BIJZ


def triangle_product_outgoing(a_BIKC: Tensor, b_BJKC: Tensor) -> Tensor:
    """Line 4 of Alg. 11: sum over k of a_ik b_jk; (B, I, K, C), (B, J, K, C) -> (B, I, J, C)."""
    return torch.einsum("bikc,bjkc->bijc", a_BIKC, b_BJKC)


def triangle_product_incoming(a_BKIC: Tensor, b_BKJC: Tensor) -> Tensor:
    """Line 4 of Alg. 12: sum over k of a_ki b_kj; (B, K, I, C), (B, K, J, C) -> (B, I, J, C)."""
    return torch.einsum("bkic,bkjc->bijc", a_BKIC, b_BKJC)


def triangle_output(
    z_BIJZ: Tensor,
    product_BIJC: Tensor,
    gate_BIJZ: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    dropout: Dropout | None,
) -> Tensor:
    """Line 4, end: normalise, project, gate; added to z, some elements dropped -> (B, I, J, Z)."""
    projected = functional.linear(layer_norm(product_BIJC, norm_weight, norm_bias), weight, bias)
    update = projected * torch.sigmoid(gate_BIJZ)
    return z_BIJZ + update if dropout is None else residual_dropout(z_BIJZ, update, *dropout)
