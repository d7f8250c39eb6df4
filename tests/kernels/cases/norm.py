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

from scalefold_kernels.ops.norm import triton as norm_alone
from scalefold_kernels.ops.norm.op import new_stats
from scalefold_kernels.ops.normed_projection import triton, triton_library
from scalefold_kernels.ops.normed_projection.arguments import (
    MAX_FEW_OUTPUTS,
    MAX_NARROW_OUTPUTS,
    Gradients,
    Norm,
    Projections,
    Sizes,
)
from scalefold_kernels.tiles import Shape, Tile, configured, overridden, read_table

Launch = Callable[[], Any]

ROWS = 65536

# What the defaults are compiled for: channels, outputs, type.
_DEFAULT_NORMS = [(32, "float32"), (128, "bfloat16"), (384, "bfloat16"), (1024, "bfloat16")]
_DEFAULT_PROJECTIONS = [(64, 64, "bfloat16"), (128, 4, "bfloat16"), (128, 512, "bfloat16")]


def compile_cases() -> list[CompileCase]:
    """All kernels of the folder."""
    return [*_norms(), *_projections()]


def _norms() -> Iterator[CompileCase]:
    for shape, record in _settings(
        "layer_norm_forward", ["C", "dtype"], _DEFAULT_NORMS, norm_alone
    ):
        x, norm = _rows(shape, "C"), _norm(shape)
        for described, stats in (("", norm.stats), ("without statistics", None)):
            yield record(described, partial(norm_alone.forward, x, *norm[:2], stats))
    for shape, record in _settings(
        "layer_norm_backward", ["C", "dtype"], _DEFAULT_NORMS, norm_alone
    ):
        x, (weight, bias, stats) = _rows(shape, "C"), _norm(shape)
        sums = weight.new_empty(3, len(weight))
        launch = partial(norm_alone.backward, x, x, weight)
        yield record("with sums", partial(launch, bias, stats, x, sums, x))
        yield record("", partial(launch, bias, stats, x, sums[:2]))
        yield record("alone", partial(launch, None, stats, None, sums[:2]))


def _projections() -> Iterator[CompileCase]:
    names = ["C", "P", "dtype"]
    for shape, record in _settings("projection_forward", names, _DEFAULT_PROJECTIONS, triton):
        x, outputs = _rows(shape, "C"), int(shape["P"])
        for few in (0, MAX_FEW_OUTPUTS) if outputs > MAX_NARROW_OUTPUTS else (0,):
            projections = _projections_of(shape, few)
            out, few_out = _rows(shape, "P"), x.new_empty(1, few or outputs, ROWS)
            launch = partial(triton.forward, x, _norm(shape), projections, out, few_out)
            yield record("few" if few else "", launch)
    narrow = [d for d in _DEFAULT_PROJECTIONS if d[1] <= MAX_NARROW_OUTPUTS]
    for shape, record in _settings("projection_backward", names, narrow, triton):
        x, grad = _rows(shape, "C"), _rows(shape, "P")
        projections = _projections_of(shape, 0)
        grads: tuple[Tensor | None, Tensor | None]
        backward = triton.backward
        if shape.get("others", 0):
            wide, backward = {**shape, "P": 512}, triton_library.backward
            grads, projections = (_rows(wide, "P"), grad), _projections_of(wide, int(shape["P"]))
        else:
            grads = (grad, None) if projections.few is None else (None, grad)
        vector = x.new_empty(projections.sizes.parameters)
        gradients = Gradients.of(vector, projections.sizes)
        arguments = *grads, x, _norm(shape), projections, x, gradients
        yield record("", partial(backward, *arguments))


def _projections_of(shape: Shape, few: int) -> Projections:
    """Of P outputs, the last quarter biased, and of ``few`` more; or of P alone if P is small."""
    channels, outputs = int(shape["C"]), int(shape["P"])
    if outputs <= MAX_FEW_OUTPUTS:
        few, outputs = outputs, 0
    sizes = Sizes(channels, outputs, outputs - outputs // 4, few)
    weight = _rows(shape, "C")
    return Projections(
        sizes,
        weight[:outputs],
        weight[:few] if few else None,
        weight.new_empty(outputs // 4) if outputs else None,
        outputs // 4,
        1.0,
        1.0,
    )


def _rows(shape: Shape, size: str) -> Tensor:
    dtype = getattr(torch, str(shape["dtype"]))
    return empty(ROWS, int(shape[size]), dtype=dtype)


def _norm(shape: Shape) -> Norm:
    x = _rows(shape, "C")
    return Norm(x[0], x[0], new_stats(x))


def _settings(
    table: str,
    names: Sequence[str],
    defaults: Sequence[tuple[int | str, ...]],
    module: ModuleType,
) -> Iterator[tuple[Shape, Callable[[str, Launch], CompileCase]]]:
    """Shapes of a table's rules and defaults, and what records the launch of its kernel there."""
    settings = [*configured(table)]
    for values in defaults:
        default = dict(zip(names, values, strict=True))
        settings += [(arch, default, read_table(table)["default"]) for arch in ("sm_80", "sm_90")]
    for arch, given, tile in settings:
        shape = {"C": 256, "dtype": "bfloat16", **given}
        yield shape, partial(_record, module, table, arch, shape, tile)


def _record(
    module: ModuleType,
    table: str,
    arch: str,
    shape: Shape,
    tile: Tile,
    described: str,
    launch: Launch,
) -> CompileCase:
    with overridden() as tables:
        tables.force(table, **tile)
        sizes = ", ".join(f"{k}={v}" for k, v in {**shape, **tile}.items())
        return recorded(
            module, f"{table}_kernel", launch, f"{table} {described} {arch} {sizes}", arch
        )
