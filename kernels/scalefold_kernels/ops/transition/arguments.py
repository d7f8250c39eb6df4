"""Arguments of the transition: checked, and as kernels take them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from scalefold_kernels.checks import check_shapes, check_types
from scalefold_kernels.limits import check_rows, needs_int64
from scalefold_kernels.rows import channels_together

MAX_CHANNELS = 256
"""A program of the forward kernel holds whole rows, and their result in float32."""

_BLOCK = 256
"""Rows; no kernel has more in a block."""


class Parameters(NamedTuple):
    """Contiguous, of shapes (C,), (C,), (H, C), (H,), (C, H), (C,): H hidden channels."""

    norm_weight: Tensor
    norm_bias: Tensor
    up_weight: Tensor
    up_bias: Tensor
    down_weight: Tensor
    down_bias: Tensor


class Kept(NamedTuple):
    """Of the forward, for backward."""

    normed: Tensor
    """Rows normalised, with the norm's weight and bias, (R, C)."""
    stats: Tensor
    """Mean and 1 / standard deviation of the rows, (2, R), float32."""


def checked(x: Tensor, *parameters: Tensor) -> Parameters:
    """Parameters for ``x`` (..., C).

    Raises
    ------
    ValueError
        A shape or a type is wrong, or there are too many channels.
    """
    channels, num_hidden = x.shape[-1], parameters[2].shape[0]
    row = (channels,)
    wanted = row, row, (num_hidden, channels), (num_hidden,), (channels, num_hidden), row
    named = zip(Parameters._fields, parameters, wanted, strict=True)
    check_shapes(f"transition of x {tuple(x.shape)}", named)
    if channels > MAX_CHANNELS:
        raise ValueError(f"transition of {channels} channels; the kernel takes {MAX_CHANNELS}")
    check_types("transition", (x, *parameters))
    return Parameters(*(p.contiguous() for p in parameters))


def matrix(x: Tensor) -> Tensor:
    """``x`` (..., C) as (R, C), rows contiguous; a copy only where its strides allow no view.

    Rows of a block are counted from its first in 32 bits: a copy, too, where they are further.
    """
    check_rows(x)
    rows = channels_together(x.reshape(-1, x.shape[-1]))
    return rows.contiguous() if needs_int64(rows[:_BLOCK]) else rows


def shape_class(x_RC: Tensor, num_hidden: int) -> dict[str, int | str]:
    """What the tables of tiles speak of."""
    num_rows, channels = x_RC.shape
    dtype = str(x_RC.dtype).removeprefix("torch.")
    return {"rows": num_rows, "C": channels, "H": num_hidden, "dtype": dtype}
