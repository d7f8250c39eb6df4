"""Arguments of global attention: checked, and as its kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.limits import check_batch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

MAX_CHANNELS = 128
"""A program holds a block of rows, and a weight of as many rows as the heads have channels."""


class Parameters(NamedTuple):
    """Contiguous; C channels, A channels of a head, D of all heads."""

    norm_weight: Tensor
    """(C,)"""
    norm_bias: Tensor
    """(C,)"""
    query_weight: Tensor
    """(D, C)"""
    key_weight: Tensor
    """(A, C)"""
    value_weight: Tensor
    """(A, C)"""
    gate_weight: Tensor
    """(D, C)"""
    gate_bias: Tensor
    """(D,)"""
    out_weight: Tensor
    """(C, D)"""
    out_bias: Tensor
    """(C,)"""


def checked(x: Tensor, mask: Tensor, *parameters: Tensor) -> Parameters:
    """Parameters for ``x`` (B, S, N, C) under ``mask`` (B, S, N).

    Raises
    ------
    ValueError
        A shape or a type is wrong, or there are too many channels or samples.
    """
    check_batch("global attention", x)
    channels = x.shape[-1]
    every, head = parameters[2].shape[0], parameters[3].shape[0]
    row, heads, wide, narrow = (channels,), (every,), (every, channels), (head, channels)
    shapes = row, row, wide, narrow, narrow, wide, heads, (channels, every), row
    named = zip(Parameters._fields, parameters, shapes, strict=True)
    for name, tensor, shape in [*named, ("mask", mask, x.shape[:-1])]:
        if tensor.shape != shape:
            raise ValueError(
                f"global attention of x {tuple(x.shape)}: {name} has shape {tuple(tensor.shape)}, "
                f"must be {tuple(shape)}"
            )
    if every % head:
        raise ValueError(
            f"query_weight has {every} rows, no multiple of the {head} of key_weight: each head "
            "has as many channels as the keys"
        )
    if max(channels, every) > MAX_CHANNELS:
        raise ValueError(
            f"global attention of {channels} channels and {every} of all heads; the kernels take "
            f"{MAX_CHANNELS}"
        )
    dtypes = {t.dtype for t in (x, *parameters)}
    if len(dtypes) > 1 or x.dtype not in DTYPES:
        raise ValueError(
            "global attention takes float32, bfloat16 or float16, the same for x and all "
            f"parameters; found {sorted(map(str, dtypes))}"
        )
    return Parameters(*(p.contiguous() for p in parameters))
