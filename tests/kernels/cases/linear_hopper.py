"""Configurations of the kernels for Hopper that the offline compilation checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from tests.kernels.offline.case import CompileCase, recorded

from scalefold_kernels.dropout.arguments import Dropout
from scalefold_kernels.linear import hopper_launch
from scalefold_kernels.linear.arguments import Update

# Templates and extra MSA, pair, MSA; another, for the defaults.
_SHAPES = [(1024, 256, 64), (256, 256, 128), (128, 256, 256), (64, 64, 96)]


def compile_cases() -> Iterator[CompileCase]:
    """Both kernels at the sizes of the model that they serve, with each kind of mask."""
    for *size, channels in _SHAPES:
        for shared_dim in (None, -3, -2):
            x, h = (_empty(1, *size, channels) for _ in range(2))
            weight, bias = _empty(channels, channels), _empty(channels)
            key = torch.empty(1, dtype=torch.int64, device="meta")
            dropout = None if shared_dim is None else Dropout(key, 7, 0.25, shared_dim)
            update = Update(x, weight, dropout)
            gradients = _empty(*h.shape), _empty(channels * channels + channels)
            launches: dict[str, Callable[[], Any]] = {
                "forward": partial(hopper_launch.forward, x, h, weight, bias, update)
            }
            if channels >= hopper_launch.MIN_OUTPUTS:
                launches["backward"] = partial(
                    hopper_launch.backward, x, h, weight, update, *gradients
                )
            for direction, launch in launches.items():
                kernel = f"residual_linear_{direction}_hopper_kernel"
                described = f"residual_linear_{direction}_hopper {channels}, shared {shared_dim}"
                with (
                    patch.object(hopper_launch, "num_sms", lambda _: 132),
                    patch.object(hopper_launch, "sum_rows"),
                ):
                    yield recorded(hopper_launch, kernel, launch, described, "sm_90")


def _empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")
