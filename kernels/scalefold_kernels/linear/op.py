"""``scalefold::residual_linear``: a linear map, dropout and the sum with a residual."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.dropout.kernel import UNIFORM_MASK
from scalefold_kernels.dropout.op import dropped, residual_dropout
from scalefold_kernels.linear.kernel import (
    residual_linear_backward_kernel,
    residual_linear_forward_kernel,
)
from scalefold_kernels.sums import column_sums, sum_rows
from scalefold_kernels.tiles import architecture, tile

MAX_FUSED_CHANNELS = 256
"""Inputs or outputs: above, weights do not fit on the chip beside the rows."""

MAX_FUSED_GRADIENT = 128 * 128
"""Elements of a weight: above, its gradient does not fit in a program's registers."""


class Dropout(NamedTuple):
    """What `scalefold.ops.dropout.Dropout` holds, in its order."""

    key: Tensor
    layer: int
    rate: float
    shared_dim: int | None


def residual_linear(
    x: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    dropout: tuple[Tensor, int, float, int | None] | None,
) -> Tensor:
    """``x`` plus a linear map of ``h``, some of its elements dropped.

    Parameters
    ----------
    x : Tensor, shape (B, ..., C), two to four dimensions
    h : Tensor, shape (B, ..., K)
    weight : Tensor, shape (C, K)
    bias : Tensor, shape (C,)
    dropout : tuple or None
        Key (B,), layer, rate, and the dimension, counted from the end, that shares one mask.
    """
    key, *others = (None, 0, 0.0, None) if dropout is None else dropout
    return _residual_linear(x, h, weight, bias, key, *others)


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
    _check(x, h, weight, bias)
    if not _fused(weight):
        update = functional.linear(h, weight, bias)
        if key is None:
            return update.add_(x)
        return residual_dropout(x, update, key, layer, rate, shared_dim)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    dropout = None if key is None else Dropout(key, layer, rate, shared_dim)
    launch = _Launch(x, weight, dropout)
    sizes = launch.tile("residual_linear_forward")
    sizes["BLOCK_C"] = min(sizes["BLOCK_C"], _block(launch.channels))
    grid = launch.grid(sizes)
    residual_linear_forward_kernel[(*grid, triton.cdiv(launch.channels, sizes["BLOCK_C"]))](
        x.contiguous(),
        h.contiguous(),
        weight.contiguous(),
        bias.contiguous(),
        out,
        *launch.arguments(),
        BLOCK_K=_block(launch.inputs),
        **launch.constants(),
        **sizes,
    )
    return out


@_residual_linear.register_fake
def _(
    x: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    key: Tensor | None,
    layer: int,
    rate: float,
    shared_dim: int | None,
) -> Tensor:
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
    channels, inputs = weight.shape
    grad_h, parameters = _gradients(h, weight)
    if grad.numel() == 0:
        return grad_h, parameters.zero_()
    h, grad = h.contiguous(), grad.contiguous()
    if not _fused(weight) or weight.numel() > MAX_FUSED_GRADIENT:
        grad = grad if key is None else dropped(grad, key, layer, rate, shared_dim)
        grad, end = grad.view(-1, channels), weight.numel()
        torch.mm(grad, weight, out=grad_h.view(-1, inputs))
        torch.mm(grad.t(), h.view(-1, inputs), out=parameters[:end].view_as(weight))
        column_sums(grad, parameters[end:])
        return grad_h, parameters
    dropout = None if key is None else Dropout(key, layer, rate, shared_dim)
    launch = _Launch(grad, weight, dropout)
    sizes = launch.tile("residual_linear_backward")
    sizes["BLOCK_K"] = min(sizes["BLOCK_K"], _block(inputs))
    grid = launch.grid(sizes)
    partial = parameters.new_empty(grid[0] * grid[1], parameters.numel(), dtype=torch.float32)
    residual_linear_backward_kernel[(*grid, triton.cdiv(inputs, sizes["BLOCK_K"]))](
        grad,
        h,
        weight.contiguous(),
        grad_h,
        partial,
        *launch.arguments(),
        BLOCK_C=_block(channels),
        **launch.constants(),
        **sizes,
    )
    sum_rows(partial, parameters.dtype, parameters)
    return grad_h, parameters


@_residual_linear_backward.register_fake
def _(
    grad: Tensor,
    h: Tensor,
    weight: Tensor,
    key: Tensor | None,
    layer: int,
    rate: float,
    shared_dim: int | None,
) -> tuple[Tensor, Tensor]:
    return _gradients(h, weight)


def _gradients(h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), weight.new_empty(weight.numel() + weight.shape[0])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, h, weight, _, key, *ctx.constants = inputs
    ctx.save_for_backward(h, weight, key)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    h, weight, key = ctx.saved_tensors
    grad_h, parameters = _residual_linear_backward(grad, h, weight, key, *ctx.constants)
    end = weight.numel()
    grad_weight, grad_bias = parameters[:end].view(weight.shape), parameters[end:]
    return grad, grad_h, grad_weight, grad_bias, None, None, None, None


_residual_linear.register_autograd(_backward, setup_context=_save)


class _Launch:
    """What both kernels need to know of their arguments.

    Parameters
    ----------
    x : Tensor, shape (B, ..., C)
    weight : Tensor, shape (C, K)
    dropout : Dropout or None
    """

    def __init__(self, x: Tensor, weight: Tensor, dropout: Dropout | None) -> None:
        self.dims = x.ndim - 1
        self.batch, *sizes, self.channels = x.shape
        self.size1, self.size2 = [1] * (3 - self.dims) + sizes
        self.inputs = weight.shape[1]
        self._weight, self._dropout = weight, dropout
        shared_dim = None if dropout is None else dropout.shared_dim
        self.shared = 0 if shared_dim is None else 4 + shared_dim
        if shared_dim is not None and not 3 - self.dims < self.shared <= 3:
            raise ValueError(f"shared_dim must be in -{self.dims}...-1 or None, found {shared_dim}")

    def tile(self, name: str) -> dict[str, int]:
        """Tile of a kernel."""
        shape: dict[str, int | str] = {
            "rows": self.batch * self.size1 * self.size2,
            "C": self.channels,
            "K": self.inputs,
            "dtype": str(self._weight.dtype).removeprefix("torch."),
        }
        return tile(name, architecture(self._weight.device), shape)

    def grid(self, sizes: dict[str, int]) -> tuple[int, int]:
        """Blocks of positions, and groups of lines; takes PROGRAMS out of ``sizes``."""
        blocks = self.batch * triton.cdiv(self.size2, sizes["BLOCK_R"])
        return blocks, max(1, min(self.size1, sizes.pop("PROGRAMS") // blocks))

    def arguments(self) -> tuple[Any, ...]:
        """From ``key_ptr`` to ``key_stride``."""
        key, layer, rate, _ = self._dropout or Dropout(None, 0, 0.0, None)  # type: ignore[arg-type]
        return (
            key,
            layer,
            round(rate * (UNIFORM_MASK.value + 1)),
            1.0 / (1.0 - rate),
            self.size1,
            self.size2,
            0 if key is None else key.stride(0),
        )

    def constants(self) -> dict[str, int | str]:
        """Compile-time constants of both kernels."""
        return {
            "K": self.inputs,
            "C": self.channels,
            "DIMS": self.dims,
            "SHARED": self.shared,
            "PRECISION": "ieee" if self._weight.dtype == torch.float32 else "tf32",
        }


def _block(size: int) -> int:
    """Smallest dimension of a matrix product that holds ``size``."""
    return max(16, triton.next_power_of_2(size))


def _fused(weight: Tensor) -> bool:
    """Whether the kernels here serve. float32 has no fast matrix product in Triton."""
    return max(weight.shape) <= MAX_FUSED_CHANNELS and not (
        weight.is_cuda and weight.dtype == torch.float32
    )


def _check(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> None:
    channels, inputs = weight.shape
    if not 2 <= x.ndim <= 4:
        raise ValueError(f"residual_linear takes 2 to 4 dimensions, found {tuple(x.shape)}")
    if x.shape != (*h.shape[:-1], channels) or h.shape[-1] != inputs or bias.shape != (channels,):
        raise ValueError(
            f"residual_linear of h {tuple(h.shape)} with weight {tuple(weight.shape)} and bias "
            f"{tuple(bias.shape)} does not give the shape of x, {tuple(x.shape)}"
        )
    if len({t.dtype for t in (x, h, weight, bias)}) > 1:
        raise ValueError(
            f"residual_linear takes one type; x is {x.dtype}, h {h.dtype}, weight {weight.dtype}, "
            f"bias {bias.dtype}"
        )
