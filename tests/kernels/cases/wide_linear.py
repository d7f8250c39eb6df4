"""Configurations that the offline compilation checks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tests.kernels.offline.case import CompileCase, recorded

from scalefold_kernels.tiles import configured, overridden, read_table
from scalefold_kernels.wide_linear import launch

_ROWS, _INPUTS, _OUTPUTS = 256, 2112, 384


def compile_cases() -> list[CompileCase]:
    """A layer, its gradients and the sum of parts, with every tile of the tables."""
    return [
        *(case for tile in _tiles("wide_linear") for case in _cases(*tile)),
        *(_of_weights(*tile) for tile in _tiles("wide_linear_gradients")),
    ]


def _tiles(table: str) -> list[tuple[str, dict[str, int]]]:
    """Architectures and tiles, each pair once."""
    tiles = [
        *((arch, read_table(table)["default"]) for arch in ("sm_80", "sm_90")),
        *((arch, sizes) for arch, _, sizes in configured(table)),
    ]
    return list({(arch, *sizes.items()): (arch, sizes) for arch, sizes in tiles}.values())


def _described(arch: str, sizes: dict[str, int]) -> str:
    return f"{arch} " + " ".join(f"{k}={v}" for k, v in sizes.items())


def _of_weights(arch: str, sizes: dict[str, int]) -> CompileCase:
    """Gradients of eight uses of a layer with a ReLU."""
    rows, grads = (torch.empty(_ROWS, n, device="meta") for n in (_INPUTS, _OUTPUTS))
    with overridden() as tiles:
        tiles.force("wide_linear_gradients", **(sizes | {"SPLITS": 1}))
        return recorded(
            launch,
            "gradients_kernel",
            lambda: launch.gradients([grads] * 8, [grads] * 8, [rows] * 8),
            f"gradient of weights {_described(arch, sizes)}",
            arch,
        )


def _cases(arch: str, sizes: dict[str, int]) -> Iterator[CompileCase]:
    x = torch.empty(_ROWS, _INPUTS, device="meta")
    weight = torch.empty(_OUTPUTS, _INPUTS, device="meta")
    bias, grad = weight.new_empty(_OUTPUTS), x.new_empty(_ROWS, _OUTPUTS)
    described = _described(arch, sizes)
    calls = {
        "layer": lambda: launch.product(x, weight.t(), bias=bias, relu=True),
        "gradient of inputs": lambda: launch.product(grad, weight, passed=grad),
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
