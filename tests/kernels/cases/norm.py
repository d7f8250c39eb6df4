"""Configurations for the offline compilation: every rule of the tables, and the defaults.

The launches run on tensors without memory, with the kernels replaced by notes of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from tests.kernels.offline.case import CompileCase, empty, recorded
from torch import Tensor

from scalefold_kernels.ops.norm import triton
from scalefold_kernels.ops.norm.op import new_stats
from scalefold_kernels.ops.normed_projection.arguments import Norm
from scalefold_kernels.tiles import Config, Shape, configured, overridden, read_table

Launch = Callable[[], Any]

ROWS = 65536

# What the defaults are compiled for: channels, type.
_DEFAULTS = [(32, "float32"), (128, "bfloat16"), (384, "bfloat16"), (1024, "bfloat16")]


def compile_cases() -> Iterator[CompileCase]:
    """All kernels of the folder."""
    for shape, record in settings("layer_norm_forward", ["C", "dtype"], _DEFAULTS, triton):
        x, norm = rows(shape, "C"), norm_of(shape)
        for described, stats in (("", norm.stats), ("without statistics", None)):
            yield record(described, partial(triton.forward, x, *norm[:2], stats))
    for shape, record in settings("layer_norm_backward", ["C", "dtype"], _DEFAULTS, triton):
        x, (weight, bias, stats) = rows(shape, "C"), norm_of(shape)
        sums = weight.new_empty(3, len(weight))
        launch = partial(triton.backward, x, x, weight)
        yield record("with sums", partial(launch, bias, stats, x, sums, x))
        yield record("", partial(launch, bias, stats, x, sums[:2]))
        yield record("alone", partial(launch, None, stats, None, sums[:2]))


def rows(shape: Shape, size: str) -> Tensor:
    """As many channels as this size of a shape."""
    dtype = getattr(torch, str(shape["dtype"]))
    return empty(ROWS, int(shape[size]), dtype=dtype)


def norm_of(shape: Shape) -> Norm:
    """Of a shape's channels."""
    x = rows(shape, "C")
    return Norm(x[0], x[0], new_stats(x))


def settings(
    table: str, names: Sequence[str], defaults: Sequence[tuple[int | str, ...]], module: ModuleType
) -> Iterator[tuple[Shape, Callable[[str, Launch], CompileCase]]]:
    """Shapes of a table's rules and defaults, and what records the launch of its kernel there."""
    settings = [*configured(table)]
    for values in defaults:
        default = dict(zip(names, values, strict=True))
        settings += [(arch, default, read_table(table)["default"]) for arch in ("sm_80", "sm_90")]
    for arch, given, config in settings:
        shape = {"C": 256, "dtype": "bfloat16", **given}
        yield shape, partial(_record, module, table, arch, shape, config)


def _record(
    module: ModuleType,
    table: str,
    arch: str,
    shape: Shape,
    config: Config,
    described: str,
    launch: Launch,
) -> CompileCase:
    with overridden() as tables:
        tables.force(table, **config)
        sizes = ", ".join(f"{k}={v}" for k, v in {**shape, **config}.items())
        return recorded(
            module, f"{table}_kernel", launch, f"{table} {described} {arch} {sizes}", arch
        )
