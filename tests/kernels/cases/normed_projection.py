"""Configurations for the offline compilation: every rule of the tables, and the defaults.

The launches run on tensors without memory, with the kernels replaced by notes of their arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from itertools import product

from tests.kernels.cases.norm import ROWS, norm_of, rows, settings
from tests.kernels.offline.case import CompileCase, empty, recorded
from torch import Tensor

from scalefold_kernels.ops.norm.op import new_stats
from scalefold_kernels.ops.normed_projection import hopper, library, triton
from scalefold_kernels.ops.normed_projection.arguments import (
    MAX_FEW_OUTPUTS,
    MAX_NARROW_OUTPUTS,
    Gradients,
    Norm,
    Projections,
    Sizes,
)
from scalefold_kernels.tiles import Shape

# What the defaults are compiled for: channels, outputs, type.
_DEFAULTS = [(64, 64, "bfloat16"), (128, 4, "bfloat16"), (128, 512, "bfloat16")]

# Templates, pair, MSA: queries, keys, values and gate, without and with a pair bias.
_SIZES = [
    Sizes(64, 256, 192, 0),
    Sizes(64, 256, 192, 4),
    Sizes(128, 512, 384, 0),
    Sizes(128, 512, 384, 4),
    Sizes(256, 1024, 768, 0),
]


def compile_cases() -> list[CompileCase]:
    """All kernels of the folder."""
    return [*_triton(), *_hopper()]


def _triton() -> Iterator[CompileCase]:
    names = ["C", "D", "dtype"]
    for shape, record in settings("normed_projection_forward", names, _DEFAULTS, triton):
        x, outputs = rows(shape, "C"), int(shape["D"])
        for few in (0, MAX_FEW_OUTPUTS) if outputs > MAX_NARROW_OUTPUTS else (0,):
            projections = _projections_of(shape, few)
            out, few_out = rows(shape, "D"), x.new_empty(1, few or outputs, ROWS)
            launch = partial(triton.forward, x, norm_of(shape), projections, out, few_out)
            yield record("few" if few else "", launch)
    narrow = [d for d in _DEFAULTS if d[1] <= MAX_NARROW_OUTPUTS]
    for shape, record in settings("normed_projection_backward", names, narrow, triton):
        x, grad = rows(shape, "C"), rows(shape, "D")
        projections = _projections_of(shape, 0)
        grads: tuple[Tensor | None, Tensor | None]
        backward = triton.backward
        if shape.get("others", 0):
            wide, backward = {**shape, "D": 512}, library.backward
            grads, projections = (rows(wide, "D"), grad), _projections_of(wide, int(shape["D"]))
        else:
            grads = (grad, None) if projections.few is None else (None, grad)
        vector = x.new_empty(projections.sizes.parameters)
        gradients = Gradients.of(vector, projections.sizes)
        arguments = *grads, x, norm_of(shape), projections, x, gradients
        yield record("", partial(backward, *arguments))


def _projections_of(shape: Shape, few: int) -> Projections:
    """Of D outputs, the last quarter biased, and of ``few`` more; or of D alone if D is small."""
    channels, outputs = int(shape["C"]), int(shape["D"])
    if outputs <= MAX_FEW_OUTPUTS:
        few, outputs = outputs, 0
    sizes = Sizes(channels, outputs, outputs - outputs // 4, few)
    weight = rows(shape, "C")
    return Projections(
        sizes,
        weight[:outputs],
        weight[:few] if few else None,
        weight.new_empty(outputs // 4) if outputs else None,
        outputs // 4,
        1.0,
        1.0,
    )


def _hopper() -> Iterator[CompileCase]:
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
            kernel = f"normed_projection_{direction}_hopper_kernel"
            described = f"projection_{direction}_hopper C={channels} D={outputs} F={few}"
            yield recorded(module, kernel, launch, f"{described} times {first_scale}", "sm_90")
