"""Configurations of the kernels for Hopper that the offline compilation checks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from itertools import product

from tests.kernels.offline.case import CompileCase, empty, recorded

from scalefold_kernels.ops.norm.op import new_stats
from scalefold_kernels.ops.normed_projection import hopper
from scalefold_kernels.ops.normed_projection.arguments import Gradients, Norm, Projections, Sizes

ROWS = 65536

# Templates, pair, MSA: queries, keys, values and gate, without and with a pair bias.
_SIZES = [
    Sizes(64, 256, 192, 0),
    Sizes(64, 256, 192, 4),
    Sizes(128, 512, 384, 0),
    Sizes(128, 512, 384, 4),
    Sizes(256, 1024, 768, 0),
]


def compile_cases() -> Iterator[CompileCase]:
    """All kernels at the sizes of the model that they serve."""
    for sizes in _SIZES:
        channels, outputs, first_biased, few = sizes
        x, grad, weight = empty(ROWS, channels), empty(ROWS, outputs), empty(outputs, channels)
        norm = Norm(x[0], x[0], new_stats(x))
        few_weight, grad_few = (empty(few, channels), empty(ROWS, few)) if few else (None, None)
        bias = empty(outputs - first_biased)
        gradients = Gradients.of(empty(sizes.parameters), sizes)
        out, few_out = empty(1, ROWS, outputs), empty(1, few, ROWS)
        for direction, first_scale in product(("forward", "backward"), (1.0, 0.5)):
            projections = Projections(
                sizes, weight, few_weight, bias, outputs // 4, first_scale, 1.0
            )
            if hopper.why_not(direction, x, projections):
                continue
            launch = (
                partial(hopper.forward, x[None], norm, projections, out, few_out)
                if direction == "forward"
                else partial(hopper.backward, grad, grad_few, x, norm, projections, x, gradients)
            )
            module = import_module(f"{hopper.__name__}.{direction}")
            kernel = f"projection_{direction}_hopper_kernel"
            described = f"projection_{direction}_hopper C={channels} P={outputs} S={few}"
            yield recorded(module, kernel, launch, f"{described} times {first_scale}", "sm_90")
