"""Dropout on a residual update: the mask is computed where it is used and never stored."""

from typing import Any

import torch
import triton
from torch import Tensor

from scalefold_kernels.dropout.arguments import Dropout, drawing
from scalefold_kernels.dropout.kernel import residual_dropout_kernel
from scalefold_kernels.limits import MAX_GRID, beyond, check_batch
from scalefold_kernels.tiles import architecture, tile


def residual_dropout(
    x: Tensor, update: Tensor, key_B: Tensor, layer: int, rate: float, shared_dim: int | None
) -> Tensor:
    """``x`` plus the update with dropped elements zeroed and the rest scaled up.

    Parameters
    ----------
    x, update : Tensor, shape (B, ...), two to four dimensions, any strides
    key_B : Tensor, shape (B,), int64
    layer : int
    rate : float
        Probability of being dropped, in [0, 1).
    shared_dim : int or None
        Dimension, counted from the end, over which one mask is shared.
    """
    return _residual_dropout(x, update, key_B, layer, rate, shared_dim)


@torch.library.custom_op("scalefold::residual_dropout", mutates_args=())
def _residual_dropout(
    x: Tensor, update: Tensor, key_B: Tensor, layer: int, rate: float, shared_dim: int | None
) -> Tensor:
    return _launch(x, update, key_B, layer, rate, shared_dim)


@_residual_dropout.register_fake
def _(
    x: Tensor, update: Tensor, key_B: Tensor, layer: int, rate: float, shared_dim: int | None
) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("scalefold::dropped", mutates_args=())
def dropped(
    gradient: Tensor, key_B: Tensor, layer: int, rate: float, shared_dim: int | None
) -> Tensor:
    """Gradient of the update: the result's, under the same mask."""
    return _launch(None, gradient, key_B, layer, rate, shared_dim)


@dropped.register_fake
def _(gradient: Tensor, key_B: Tensor, layer: int, rate: float, shared_dim: int | None) -> Tensor:
    return torch.empty_like(gradient, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, key_B, *ctx.constants = inputs
    ctx.save_for_backward(key_B)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    (key_B,) = ctx.saved_tensors
    needs = ctx.needs_input_grad
    of_update = dropped(gradient, key_B, *ctx.constants) if needs[1] else None
    return gradient if needs[0] else None, of_update, None, None, None, None


_residual_dropout.register_autograd(_backward, setup_context=_save)


def _launch(
    x: Tensor | None,
    update: Tensor,
    key_B: Tensor,
    layer: int,
    rate: float,
    shared_dim: int | None,
) -> Tensor:
    dims = update.dim() - 1
    check_batch("residual_dropout", update)
    if not 1 <= dims <= 3:
        raise ValueError(f"residual_dropout takes 2 to 4 dimensions, found {tuple(update.shape)}")
    if x is not None and (x.shape, x.dtype) != (update.shape, update.dtype):
        raise ValueError(
            f"residual_dropout of x {tuple(x.shape)}, {x.dtype}, and an update "
            f"{tuple(update.shape)}, {update.dtype}; both must be alike"
        )
    batch, *shape = update.shape
    shape = [1] * (3 - dims) + shape
    dropout = Dropout(key_B, layer, rate, shared_dim)
    dropout.check(batch)
    shared = dropout.shared
    if 0 < shared <= 3 - dims:
        raise ValueError(f"shared_dim must be in -{dims}...-1 or None, found {shared_dim}")
    out = torch.empty_like(update, memory_format=torch.contiguous_format)
    num_shared = shape[shared - 1] if shared else 1
    num_columns = shape[0] * shape[1] * shape[2] // max(num_shared, 1)
    sizes = tile(
        "residual_dropout",
        architecture(update.device),
        {
            "S": num_shared,
            "columns": num_columns,
            "shared": shared,
            "dtype": str(update.dtype).removeprefix("torch."),
        },
    )
    blocks = (
        triton.cdiv(num_shared, sizes["BLOCK_S"] * sizes["STEPS"]),
        triton.cdiv(num_columns, sizes["BLOCK_N"]),
    )
    wide = beyond(num_columns) or blocks[1] > MAX_GRID
    strides = _strides(update, dims)
    residual_dropout_kernel[(*(blocks[::-1] if wide else blocks), batch)](
        x,
        update,
        out,
        *drawing(dropout),
        *shape,
        *(strides if x is None else _strides(x, dims)),
        *strides,
        key_B.stride(0),
        DIMS=dims,
        SHARED=shared,
        HAS_X=x is not None,
        INT64=wide,
        **sizes,
    )
    return out


def _strides(tensor: Tensor, dims: int) -> list[int]:
    batch, *others = tensor.stride()
    return [batch] + [0] * (3 - dims) + others
