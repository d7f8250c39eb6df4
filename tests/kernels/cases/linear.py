"""Configurations for the offline compilation: every rule of the tables, and the defaults.

The launches run on tensors without memory, with the kernels replaced by notes of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from tests.kernels.offline.case import CompileCase, empty, recorded
from torch import Tensor

from scalefold_kernels.dropout.mask import Dropout
from scalefold_kernels.ops.linear import hopper, triton
from scalefold_kernels.ops.linear.op import Call
from scalefold_kernels.tiles import Config, Shape, configured, overridden, read_table

# Channels in and out: pair, templates, MSA.
_DEFAULTS = [(128, 128), (64, 64), (256, 256)]

# Templates and extra MSA, pair, MSA; another, for the defaults.
_SHAPES = [(1024, 256, 64), (256, 256, 128), (128, 256, 256), (64, 64, 96)]


def compile_cases() -> list[CompileCase]:
    """Without dropout, and with masks shared by lines and by positions."""
    return [*_triton_cases("forward"), *_triton_cases("backward"), *_hopper_cases()]


def _triton_cases(direction: str) -> Iterator[CompileCase]:
    table = f"residual_linear_{direction}"
    for arch, shape, config in _settings(table):
        channels, inputs = int(shape["C"]), int(shape["K"])
        if direction == "backward" and channels * inputs > triton.MAX_GRADIENT:
            continue
        x, h = (empty(1, 256, 256, size) for size in (channels, inputs))
        weight = empty(channels, inputs)
        for shared_dim, call in _calls(x, weight):
            launch: Callable[[], Any]
            launch = partial(triton.forward, x, h, weight, weight[:, 0], call)
            if direction == "backward":
                gradients = h, empty(weight.numel() + channels)
                launch = partial(triton.backward, x, h, weight, call, *gradients)
            described = f"{table} {arch} K={inputs} C={channels}, shared {shared_dim}, {config}"
            with overridden() as tables:
                tables.force(table, **config)
                yield recorded(triton, f"{table}_kernel", launch, described, arch)


def _settings(table: str) -> Iterator[tuple[str, Shape, Config]]:
    yield from configured(table)
    for inputs, channels in _DEFAULTS:
        for arch in ("sm_80", "sm_90"):
            yield arch, {"K": inputs, "C": channels}, read_table(table)["default"]


def _hopper_cases() -> Iterator[CompileCase]:
    """Both kernels at the sizes of the model that they serve, with each kind of mask."""
    for *size, channels in _SHAPES:
        x, h = (empty(1, *size, channels) for _ in range(2))
        weight, bias = empty(channels, channels), empty(channels)
        gradients = empty(*h.shape), empty(channels * channels + channels)
        for shared_dim, call in _calls(x, weight):
            launches: dict[str, Callable[[], Any]] = {
                "forward": partial(hopper.forward, x, h, weight, bias, call)
            }
            if channels >= hopper.MIN_OUTPUTS:
                launches["backward"] = partial(hopper.backward, x, h, weight, call, *gradients)
            for direction, launch in launches.items():
                kernel = f"residual_linear_{direction}_hopper_kernel"
                module = import_module(f"scalefold_kernels.ops.linear.hopper.{direction}")
                described = f"residual_linear_{direction}_hopper {channels}, shared {shared_dim}"
                yield recorded(module, kernel, launch, described, "sm_90")


def _calls(x: Tensor, weight: Tensor) -> Iterator[tuple[int | None, Call]]:
    """Without a mask, and with each kind of mask: the dimension that shares it, and the update."""
    key = empty(1, dtype=torch.int64)
    yield None, Call(x, weight, None)
    for shared_dim in (-3, -2):
        yield shared_dim, Call(x, weight, Dropout(key, 7, 0.25, shared_dim))
