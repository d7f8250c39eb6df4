"""Configurations that the offline compilation checks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from scalefold_kernels.compilation import CompileCase, recorded
from scalefold_kernels.tiles import configured, overridden, read_table
from scalefold_kernels.wide_linear import launch

_ROWS, _INPUTS, _OUTPUTS = 256, 2112, 384


def compile_cases() -> list[CompileCase]:
    """A layer, its gradients and the sum of parts, with every tile of the table."""
    table = read_table("wide_linear")
    tiles = [
        *((arch, table["default"]) for arch in ("sm_80", "sm_90")),
        *((arch, sizes) for arch, _, sizes in configured("wide_linear")),
    ]
    once = {(arch, *sizes.items()): (arch, sizes) for arch, sizes in tiles}
    return [case for arch, sizes in once.values() for case in _cases(arch, sizes)]


def _cases(arch: str, sizes: dict[str, int]) -> Iterator[CompileCase]:
    x = torch.empty(_ROWS, _INPUTS, device="meta")
    weight = torch.empty(_OUTPUTS, _INPUTS, device="meta")
    bias, grad = weight.new_empty(_OUTPUTS), x.new_empty(_ROWS, _OUTPUTS)
    described = f"{arch} " + " ".join(f"{k}={v}" for k, v in sizes.items())
    calls = {
        "layer": lambda: launch.product(x, weight.t(), bias=bias, relu=True),
        "gradient of inputs": lambda: launch.product(grad, weight, passed=grad),
        "gradient of weights": lambda: launch.product(grad.t(), x, passed=grad.t(), sums=bias),
    }
    with overridden() as tiles:
        # Parts have another end; their sum is below.
        tiles.force("wide_linear", **(sizes | {"SPLITS": 1}))
        for name, call in calls.items():
            yield recorded(launch, "product_kernel", call, f"{name} {described}", arch)
    if sizes["SPLITS"] > 1:
        parts = x.new_empty(sizes["SPLITS"], *grad.shape)
        yield recorded(
            launch,
            "join_splits_kernel",
            lambda: launch.join(parts, bias, grad, HAS_BIAS=True, RELU=True),
            f"sum of parts {described}",
            arch,
        )
