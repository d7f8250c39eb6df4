"""``scalefold::residual_linear``: a linear map, dropout and the sum with a residual."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.backends import HOPPER, TORCH, TRITON, Backends
from scalefold_kernels.checks import check_rows, check_shapes, check_types
from scalefold_kernels.dropout.mask import Dropout, drawing
from scalefold_kernels.packing import unpack
from scalefold_kernels.tiles import Config, config_for

_BACKENDS = Backends("residual_linear", __package__, HOPPER, TRITON, TORCH)


def residual_linear(
    x: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    dropout: tuple[Tensor, int, float, int | None] | None,
) -> Tensor:
    """As `api.residual_linear`, some of the map's elements dropped.

    ``dropout``: key (B,), layer, rate, and the dimension, counted from the end, that shares a mask.
    """
    return _residual_linear(x, h, weight, bias, *(dropout or (None, 0, 0.0, None)))


@torch.library.custom_op("scalefold::residual_linear", mutates_args=())
def _residual_linear(
    x: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    key: Tensor | None,
    layer: int,
    rate: float,
    shared_dim: int | None,
) -> Tensor:
    check(x, h, weight, bias)
    if x.numel() == 0:
        return x.new_empty(x.shape)
    dropout = None if key is None else Dropout(key, layer, rate, shared_dim)
    call = Call(x, weight, dropout)
    x, h, weight, bias = (t.contiguous() for t in (x, h, weight, bias))
    backend = _BACKENDS.choose("forward", x.device, call, x, h, weight)
    out: Tensor = backend.forward(x, h, weight, bias, call)
    return out


@_residual_linear.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("scalefold::residual_linear_backward", mutates_args=())
def _residual_linear_backward(
    grad: Tensor,
    h: Tensor,
    weight: Tensor,
    key: Tensor | None,
    layer: int,
    rate: float,
    shared_dim: int | None,
) -> tuple[Tensor, Tensor]:
    """Gradient of ``h``; of weight and bias as one vector."""
    grad_h, flat_grad = _gradients(grad, h, weight)
    if grad.numel() == 0:
        return grad_h, flat_grad.zero_()
    dropout = None if key is None else Dropout(key, layer, rate, shared_dim)
    call = Call(grad, weight, dropout)
    grad, h, weight = (t.contiguous() for t in (grad, h, weight))
    backend = _BACKENDS.choose("backward", grad.device, call, grad, h, weight)
    backend.backward(grad, h, weight, call, grad_h, flat_grad)
    return grad_h, flat_grad


@_residual_linear_backward.register_fake
def _gradients(_grad: Tensor, h: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), weight.new_empty(weight.numel() + weight.shape[0])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, h, weight, _, key, *ctx.constants = inputs
    ctx.save_for_backward(h, weight, key)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    h, weight, key = ctx.saved_tensors
    grad_h, flat_grad = _residual_linear_backward(grad, h, weight, key, *ctx.constants)
    of_map = unpack(flat_grad, [weight, weight[:, 0]])
    return grad, grad_h, *of_map, None, None, None, None


_residual_linear.register_autograd(_backward, setup_context=_save)


class Call:
    """One call: the sizes of its x (B, ..., C) and weight (C, K), its type, GPU and dropout."""

    def __init__(self, x: Tensor, weight: Tensor, dropout: Dropout | None) -> None:
        self.dims = x.ndim - 1
        self.batch, *sizes, self.channels = x.shape
        self.size1, self.size2 = [1] * (3 - self.dims) + sizes
        self.inputs = weight.shape[1]
        self.dropout, self._weight = dropout, weight
        if dropout is not None:
            dropout.check(self.batch)
        self.shared = 0 if dropout is None else dropout.shared
        if 0 < self.shared <= 3 - self.dims:
            found = self.shared - 4
            raise ValueError(f"shared_dim must be in -{self.dims}...-1 or None, found {found}")

    @property
    def rows(self) -> int:
        return self.batch * self.size1 * self.size2

    def config(self, kernel: str, arch: str | None = None) -> Config:
        sizes = {"rows": self.rows, "C": self.channels, "K": self.inputs, "shared": self.shared}
        return config_for(kernel, self._weight, arch, **sizes)

    @property
    def hashing(self) -> tuple[Any, ...]:
        """Key, layer, threshold and scale, as the kernels take them."""
        return drawing(self.dropout)

    @property
    def key_stride(self) -> int:
        return 0 if self.dropout is None else self.dropout.key.stride(0)


def check(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Raise ValueError where the arguments do not fit together, or are too many rows."""
    check_rows(x)
    channels, inputs = weight.shape
    if not 2 <= x.ndim <= 4:
        raise ValueError(f"residual_linear takes 2 to 4 dimensions, found {tuple(x.shape)}")
    wanted = (*x.shape[:-1], channels), (*x.shape[:-1], inputs), (channels,)
    named = zip(("x", "h", "bias"), (x, h, bias), wanted)
    check_shapes(f"residual_linear of x {tuple(x.shape)}, weight {tuple(weight.shape)}", named)
    check_types("residual_linear", (x, h, weight, bias))
