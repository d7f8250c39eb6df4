"""Configurations of the kernels for Hopper that the offline compilation checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from scalefold_kernels.compilation import CompileCase, recorded
from scalefold_kernels.norm.op import new_stats
from scalefold_kernels.norm.projection import hopper_few_launch, hopper_launch
from scalefold_kernels.norm.projection.arguments import Gradients, Norm, Projections, Sizes

ROWS = 65536

# Templates, pair, MSA: queries, keys, values and gate, without and with a pair bias; this alone.
_SIZES = [
    Sizes(64, 256, 192, 0),
    Sizes(64, 256, 192, 4),
    Sizes(128, 512, 384, 0),
    Sizes(128, 512, 384, 4),
    Sizes(256, 1024, 768, 0),
    Sizes(64, 0, 0, 4),
    Sizes(128, 0, 0, 8),
]


def compile_cases() -> Iterator[CompileCase]:
    """All kernels at the sizes of the model that they serve."""
    for sizes in _SIZES:
        channels, outputs, first_biased, few = sizes
        module, kind = (hopper_launch, "hopper") if outputs else (hopper_few_launch, "few")
        x, grad, weight = _empty(ROWS, channels), _empty(ROWS, outputs), _empty(outputs, channels)
        norm = Norm(x[0], x[0], new_stats(x))
        few_weight, grad_few = (_empty(few, channels), _empty(ROWS, few)) if few else (None, None)
        bias = _empty(outputs - first_biased)
        projections = Projections(sizes, weight, few_weight, bias, 1.0)
        gradients = Gradients.of(_empty(sizes.parameters), sizes)
        out, aside = _empty(1, ROWS, outputs), _empty(1, few, ROWS)
        launches: dict[str, Callable[[], Any]] = {
            "forward": partial(module.forward, x[None], norm, projections, out, aside)
        }
        if module.serves(x, projections, "backward"):
            launches["backward"] = partial(
                module.backward, grad, grad_few, x, norm, projections, x, gradients
            )
        for direction, launch in launches.items():
            kernel = f"projection_{direction}_{kind}_kernel"
            with (
                # H100 and H200.
                patch.object(hopper_launch, "num_programs", lambda tiles, _: min(tiles, 132)),
                patch.object(hopper_launch, "sum_rows"),
            ):
                described = f"projection_{direction}_{kind} C={channels} P={outputs} S={few}"
                yield recorded(module, kernel, launch, described, "sm_90")


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")
