"""Configurations that the offline compilation checks: what the launches ask for.

The launches run on tensors without memory, see `recorded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from tests.kernels.offline.case import CompileCase, recorded
from torch import Tensor

from scalefold_kernels.dropout.arguments import Dropout
from scalefold_kernels.triangle import hopper_launch, launch, portable, product
from scalefold_kernels.triangle import kernel as portable_kernels
from scalefold_kernels.triangle.arguments import (
    OutputArguments,
    OutputWeights,
    ProjectionGradients,
    ProjectionKept,
    ProjectionWeights,
)
from scalefold_kernels.triangle.sizes import Sizes

_CHANNELS = [(128, 128), (64, 64), (256, 48)]
"""Of pairs, and hidden: Evoformer, template block, wider pairs."""


def compile_cases() -> list[CompileCase]:
    """Every kernel in bfloat16."""
    found: list[CompileCase] = []
    for pair, hidden in _CHANNELS:
        for arch in ("sm_80", "sm_90"):
            sizes = Sizes(256 * 256, pair, hidden, torch.bfloat16, arch)
            found += _cases(sizes, portable, portable_kernels, "")
            if hopper_launch.serves(sizes):
                with patch.object(hopper_launch, "num_sms", lambda _: 132):  # H100, H200
                    found += _cases(sizes, hopper_launch, hopper_launch, "_kernel")
    return found + list(_products())


def _cases(
    sizes: Sizes, launches: ModuleType, kernels: ModuleType, suffix: str
) -> Iterator[CompileCase]:
    """``suffix``: of the kernels' names."""
    pair, hidden = sizes.pair, sizes.hidden
    z, operand = _empty(1, 256, 256, pair), _empty(hidden, 1, 256, 256)
    mask, numbers = z[..., 0].contiguous(), _empty(1, 256, 256, dtype=torch.float32)
    matrices = [_empty(hidden, pair), _empty(hidden)] * 4 + [_empty(pair, pair), _empty(pair)]
    projection = ProjectionWeights(*[_empty(pair)] * 2, *matrices)
    output = OutputWeights(_empty(hidden), _empty(hidden), _empty(pair, hidden), _empty(pair))
    dropout = Dropout(torch.empty(1, dtype=torch.int64, device="meta"), 5, 0.25, -3)
    keep = _empty(1, 1, 256, pair, dtype=torch.uint8)
    given = OutputArguments(operand, z, output, keep, dropout)
    gradients = ProjectionGradients(operand, operand, z, z)
    kept = ProjectionKept(z, mask, operand, operand, numbers, numbers)
    found: dict[str, Callable[[], Any]] = {
        "projection_forward": lambda: launches.projection(sizes, z, mask, projection),
        "projection_backward": lambda: launches.projection_backward(
            sizes, gradients, kept, projection
        ),
        "output_forward": lambda: launches.output(sizes, given, z),
        "output_backward": lambda: launches.output_backward(sizes, given, z, [numbers, numbers]),
    }
    if launches is portable:
        found["projection_weights"] = found["projection_backward"]
        sums = _empty(26, 4 * hidden + pair, pair, dtype=torch.float32)
        found |= {
            "output_weights": found["output_backward"],
            "finish_weights": lambda: launch.finish(
                sizes, sums, sums[:, :, 0].contiguous(), *projection[:2], projection.matrices
            ),
        }
        found["sum_rows"] = found["finish_weights"]
        found["dropout_mask"] = lambda: launch.dropout_mask(keep, dropout)
    for name, run in found.items():
        described = f"{name} Z={pair} C={hidden} {sizes.arch}" + (suffix and " Hopper")
        others: dict[str, Any] = {k + suffix: _Nothing() for k in found if k != name}
        last = _Nothing() if name != "projection_weights" else portable_kernels.projection_weights
        with (
            patch.multiple(kernels, **others),
            patch.object(portable_kernels, "projection_weights", last),
        ):
            yield recorded(kernels, name + suffix, run, described, sizes.arch)


def _products() -> Iterator[CompileCase]:
    """Of both directions; forward has one product, backward two."""
    x = _empty(128, 1, 256, 256)
    cases = {
        "outgoing": [(x, x.mT)],
        "incoming": [(x.mT, x)],
        "outgoing backward": [(x, x), (x.mT, x)],
        "incoming backward": [(x, x.mT), (x, x)],
    }
    with patch.object(product, "num_ctas", lambda *_: 132):
        for direction, pairs in cases.items():
            run = partial(product.launch, [product.Product(*pair) for pair in pairs])
            described = f"batched_products {direction}"
            yield recorded(product, "batched_products_kernel", run, described, "sm_90")


class _Nothing:
    """A kernel that is not the one that is looked at."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
