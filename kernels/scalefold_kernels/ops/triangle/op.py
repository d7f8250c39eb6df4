"""Triangle multiplication in its three parts, registered with torch.library.

The signatures are those of `scalefold.ops.triangle`. What passes between the parts is a view with
the shape (B, I, J, C) of a contiguous (C, B, I, J) tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.backends import HOPPER, TORCH, TRITON, Backend, Backends
from scalefold_kernels.dropout.mask import Dropout
from scalefold_kernels.ops.triangle.arguments import (
    OutputArguments,
    OutputWeights,
    Product,
    Projected,
    ProjectionGradients,
    ProjectionKept,
    ProjectionWeights,
    Sizes,
    check_output,
    check_projection,
    new_stats,
)
from scalefold_kernels.packing import unpack

_BACKENDS = Backends("triangle_multiplication", __package__, HOPPER, TRITON)
"""Backends of the projection and the output."""

_PRODUCT_BACKENDS = Backends(
    "triangle_product", __package__, Backend("hopper.product", "hopper"), TORCH
)


def triangle_projection(
    z_BIJZ: Tensor, mask_BIJ: Tensor, *parameters: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Masked operands, and the output gate before its sigmoid (Suppl. Alg. 11, 12, lines 1-3).

    ``parameters``: weight and bias of the normalisation and of five projections: a, its gate, b,
    its gate, and the output gate; shapes (Z,), (C, Z) and (C,), (Z, Z) and (Z,). The mask takes no
    gradient. Returns a and b (B, I, J, C), gate and z (B, I, J, Z). z is as it came; the gradient
    of this one is added in the kernel that makes z's.
    """
    a, b, gate, z = _Projection.apply(z_BIJZ, mask_BIJ, *parameters)
    return a.permute(1, 2, 3, 0), b.permute(1, 2, 3, 0), gate, z


def triangle_product_outgoing(a_BIKC: Tensor, b_BJKC: Tensor) -> Tensor:
    """Sum over k of a_ik b_jk (Alg. 11, line 4); (B, I, K, C), (B, J, K, C) -> (B, I, J, C)."""
    a_CBIK, b_CBJK = a_BIKC.permute(3, 0, 1, 2), b_BJKC.permute(3, 0, 1, 2)
    return _product(a_CBIK, b_CBJK, True).permute(1, 2, 3, 0)


def triangle_product_incoming(a_BKIC: Tensor, b_BKJC: Tensor) -> Tensor:
    """Sum over k of a_ki b_kj (Alg. 12, line 4); (B, K, I, C), (B, K, J, C) -> (B, I, J, C)."""
    a_CBKI, b_CBKJ = a_BKIC.permute(3, 0, 1, 2), b_BKJC.permute(3, 0, 1, 2)
    return _product(a_CBKI, b_CBKJ, False).permute(1, 2, 3, 0)


def triangle_output(
    z_BIJZ: Tensor,
    product_BIJC: Tensor,
    gate_BIJZ: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    dropout: tuple[Tensor, int, float, int | None] | None,
) -> Tensor:
    """Normalise the product, project it, open the gate (Alg. 11, 12, line 4, end); add to z.

    The gate is before its sigmoid, the weight (Z, C). ``dropout``: key (B,), layer, rate, and the
    dimension, counted from the end, that shares one mask.
    """
    parameters = [norm_weight, norm_bias, weight, bias]
    product_CBIJ = product_BIJC.permute(3, 0, 1, 2)
    drawn = dropout or (None, 0, 0.0, None)
    return _output(z_BIJZ, product_CBIJ, gate_BIJZ, parameters, *drawn)[0]


@torch.library.custom_op("scalefold::triangle_projection", mutates_args=())
def _projection(
    z: Tensor, mask: Tensor, parameters: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    check_projection(z, mask, parameters)
    z, mask, *parameters = _contiguous(z, mask, *parameters)
    weights = ProjectionWeights(*parameters)
    sizes = Sizes.of(z, *reversed(weights.a.shape))
    backend = _BACKENDS.choose("projection_forward", z.device, sizes)
    a, b, gate, mean, rstd = backend.projection_forward(sizes, z, mask, weights)
    return a, b, gate, mean, rstd


@_projection.register_fake
def _(z: Tensor, _mask: Tensor, parameters: list[Tensor]) -> tuple[Tensor, ...]:
    return tuple(Projected.empty(z, parameters[2].shape[0]))


@torch.library.custom_op("scalefold::triangle_projection_backward", mutates_args=())
def _projection_backward(
    grads: list[Tensor],
    through: Tensor | None,
    z: Tensor,
    mask: Tensor,
    operands: list[Tensor],
    stats: list[Tensor],
    parameters: list[Tensor],
) -> tuple[Tensor, Tensor]:
    z, mask, *parameters = _contiguous(z, mask, *parameters)
    through = None if through is None else through.contiguous()
    grad_a, grad_b, grad_gate = _contiguous(*grads)
    given = ProjectionGradients(grad_a, grad_b, grad_gate, through)
    kept = ProjectionKept(z, mask, *operands, *stats)
    weights = ProjectionWeights(*parameters)
    sizes = Sizes.of(z, *reversed(weights.a.shape))
    backend = _BACKENDS.choose("projection_backward", z.device, sizes)
    grad_z, flat_grad = backend.projection_backward(sizes, given, kept, weights)
    return grad_z, flat_grad


@_projection_backward.register_fake
def _(_grads: Any, _through: Any, z: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return z.new_empty(z.shape), z.new_empty(sum(p.numel() for p in others[-1]))


class _Projection(torch.autograd.Function):
    """`_projection`, and z itself (a custom operation may not return its input)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, mask: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        a, b, gate, mean, rstd = _projection(z, mask, list(parameters))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(z, mask, a, b, mean, rstd, *parameters)
        return a, b, gate, z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        z, mask, a, b, mean, rstd, *parameters = ctx.saved_tensors
        *given, through = grads
        if all(grad is None for grad in given):
            return through, *[None] * (1 + len(parameters))
        pairs = zip(given, (a, b, z), strict=True)
        filled = [torch.zeros_like(like) if grad is None else grad for grad, like in pairs]
        grad_z, flat_grad = _projection_backward(
            filled, through, z, mask, [a, b], [mean, rstd], parameters
        )
        return grad_z, None, *unpack(flat_grad, parameters)


@torch.library.custom_op("scalefold::triangle_product", mutates_args=())
def _product(a: Tensor, b: Tensor, outgoing: bool) -> Tensor:
    """Outgoing: (C, B, I, K), (C, B, J, K) -> (C, B, I, J); incoming: K before I and J."""
    (result,) = _products((a, b.mT) if outgoing else (a.mT, b))
    return result


@_product.register_fake
def _(a: Tensor, b: Tensor, outgoing: bool) -> Tensor:
    rows, columns = (a.shape[2], b.shape[2]) if outgoing else (a.shape[3], b.shape[3])
    return a.new_empty(*a.shape[:2], rows, columns)


@torch.library.custom_op("scalefold::triangle_product_backward", mutates_args=())
def _product_backward(grad: Tensor, a: Tensor, b: Tensor, outgoing: bool) -> tuple[Tensor, Tensor]:
    """Both are contiguous, as the backward of the projection reads them."""
    if outgoing:
        grad_a, grad_b = _products((grad, b), (grad.mT, a))
    else:
        grad_a, grad_b = _products((b, grad.mT), (a, grad))
    return grad_a, grad_b


@_product_backward.register_fake
def _(grad: Tensor, a: Tensor, b: Tensor, outgoing: bool) -> tuple[Tensor, Tensor]:
    return a.new_empty(a.shape), b.new_empty(b.shape)


def _products(*pairs: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Products (C, B, rows, columns), contiguous, of one or two pairs of the same C and B."""
    todo = [Product.of(*pair) for pair in pairs]
    backend = _PRODUCT_BACKENDS.choose("products", todo[0].x.device, todo)
    return backend.products(todo)


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, ctx.outgoing = inputs
    ctx.save_for_backward(a, b)


def _product_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    a, b = ctx.saved_tensors
    return *_product_backward(grad, a, b, ctx.outgoing), None


_product.register_autograd(_product_gradients, setup_context=_save_product)


@torch.library.custom_op("scalefold::triangle_output", mutates_args=())
def _output(
    z: Tensor,
    product: Tensor,
    gate: Tensor,
    parameters: list[Tensor],
    key: Tensor | None,
    layer: int,
    rate: float,
    shared_dim: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    check_output(z, product, gate, parameters)
    z, product, gate, *parameters = _contiguous(z, product, gate, *parameters)
    dropout = _dropout(key, layer, rate, shared_dim)
    if dropout is not None:
        dropout.check(len(z))
    given = OutputArguments(product, gate, OutputWeights(*parameters), dropout)
    sizes = Sizes.of(z, z.shape[-1], len(product))
    backend = _BACKENDS.choose("output_forward", z.device, sizes)
    out, mean, rstd = backend.output_forward(sizes, given, z)
    return out, mean, rstd


@_output.register_fake
def _(z: Tensor, product: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return z.new_empty(z.shape), *new_stats(product[0])


@torch.library.custom_op("scalefold::triangle_output_backward", mutates_args=())
def _output_backward(
    grad: Tensor,
    product: Tensor,
    gate: Tensor,
    stats: list[Tensor],
    parameters: list[Tensor],
    key: Tensor | None,
    layer: int,
    rate: float,
    shared_dim: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    grad, product, gate, *parameters = _contiguous(grad, product, gate, *parameters)
    dropout = _dropout(key, layer, rate, shared_dim)
    given = OutputArguments(product, gate, OutputWeights(*parameters), dropout)
    sizes = Sizes.of(gate, gate.shape[-1], len(product))
    backend = _BACKENDS.choose("output_backward", gate.device, sizes)
    grad_product, grad_gate, flat_grad = backend.output_backward(sizes, given, stats, grad)
    return grad_product, grad_gate, flat_grad


@_output_backward.register_fake
def _(_: Any, product: Tensor, gate: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    flat_grad = gate.new_empty(sum(p.numel() for p in others[1]))
    return product.new_empty(product.shape), gate.new_empty(gate.shape), flat_grad


def _save_output(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, product, gate, parameters, key, *ctx.dropout = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(key, product, gate, *output[1:], *parameters)


def _output_gradients(ctx: Any, grad: Tensor, *_: None) -> tuple[Any, ...]:
    key, product, gate, mean, rstd, *parameters = ctx.saved_tensors
    grad_product, grad_gate, flat_grad = _output_backward(
        grad, product, gate, [mean, rstd], parameters, key, *ctx.dropout
    )
    return grad, grad_product, grad_gate, unpack(flat_grad, parameters), None, None, None, None


_output.register_autograd(_output_gradients, setup_context=_save_output)


def _dropout(key: Tensor | None, layer: int, rate: float, shared_dim: int | None) -> Dropout | None:
    return None if key is None else Dropout(key.contiguous(), layer, rate, shared_dim)


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    return [t.contiguous() for t in tensors]
