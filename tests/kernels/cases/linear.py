"""Configurations for the offline compilation: every rule of the tables, and the defaults.

The launches run on tensors without memory, with the kernels replaced by notes of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from tests.kernels.offline.case import CompileCase, recorded
from torch import Tensor

from scalefold_kernels.dropout.arguments import Dropout
from scalefold_kernels.linear import portable
from scalefold_kernels.linear.arguments import Update
from scalefold_kernels.tiles import Shape, Tile, configured, overridden, read_table

# Channels in and out: pair, templates, MSA.
_DEFAULTS = [(128, 128), (64, 64), (256, 256)]


def compile_cases() -> list[CompileCase]:
    """Without dropout, and with masks shared by lines and by positions."""
    return [*_portable("forward"), *_portable("backward")]


def _portable(direction: str) -> Iterator[CompileCase]:
    table = f"residual_linear_{direction}"
    for arch, shape, tile in _settings(table):
        channels, inputs = int(shape["C"]), int(shape["K"])
        if direction == "backward" and channels * inputs > portable.MAX_FUSED_GRADIENT:
            continue
        x, h, weight = (
            _empty(1, 256, 256, channels),
            _empty(1, 256, 256, inputs),
            _empty(channels, inputs),
        )
        key = torch.empty(1, dtype=torch.int64, device="meta")
        for shared_dim in (None, -3, -2):
            dropout = None if shared_dim is None else Dropout(key, 7, 0.25, shared_dim)
            update = Update(x, weight, dropout)
            launch: Callable[[], Any]
            launch = partial(portable.forward, x, h, weight, weight[:, 0], update)
            if direction == "backward":
                gradients = h, _empty(weight.numel() + channels)
                launch = partial(portable.backward, x, h, weight, update, *gradients)
            described = f"{table} {arch} K={inputs} C={channels}, shared {shared_dim}, {tile}"
            with overridden() as tables, patch.object(portable, "sum_rows"):
                tables.force(table, **tile)
                yield recorded(portable, f"{table}_kernel", launch, described, arch)


def _settings(table: str) -> Iterator[tuple[str, Shape, Tile]]:
    yield from configured(table)
    for inputs, channels in _DEFAULTS:
        for arch in ("sm_80", "sm_90"):
            yield arch, {"K": inputs, "C": channels}, read_table(table)["default"]


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")
