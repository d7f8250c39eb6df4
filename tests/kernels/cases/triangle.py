"""Triangle multiplication: configurations that the offline compilation checks.

The launches run on tensors without memory, see `recorded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from tests.kernels.offline.case import CompileCase, empty, recorded

from scalefold_kernels.dropout.mask import Dropout
from scalefold_kernels.ops.norm import weights as norm_weights
from scalefold_kernels.ops.triangle import hopper, triton, weights
from scalefold_kernels.ops.triangle.arguments import (
    OutputArguments,
    OutputWeights,
    Product,
    ProjectionGradients,
    ProjectionKept,
    ProjectionWeights,
    Sizes,
)
from scalefold_kernels.ops.triangle.hopper import output as hopper_output
from scalefold_kernels.ops.triangle.hopper import output_gradient as hopper_output_gradient
from scalefold_kernels.ops.triangle.hopper import product as hopper_product
from scalefold_kernels.ops.triangle.hopper import projection as hopper_projection
from scalefold_kernels.ops.triangle.hopper import projection_gradient as hopper_projection_gradient
from scalefold_kernels.ops.triangle.triton import output as triton_output
from scalefold_kernels.ops.triangle.triton import projection as triton_projection

_CHANNELS = [(128, 128), (64, 64), (256, 48)]
"""Of pairs, and hidden: Evoformer, template block, wider pairs."""

_TRITON = {
    "triangle_projection_forward": triton_projection,
    "triangle_projection_backward": triton_projection,
    "triangle_projection_weights": weights,
    "triangle_output_forward": triton_output,
    "triangle_output_backward": triton_output,
    "triangle_output_weights": weights,
    "finish_weights": norm_weights,
}
_HOPPER = {
    "triangle_projection_forward_hopper": hopper_projection,
    "triangle_projection_backward_hopper": hopper_projection_gradient,
    "triangle_output_forward_hopper": hopper_output,
    "triangle_output_backward_hopper": hopper_output_gradient,
}
"""The kernels' names without ``_kernel``, and their modules."""


def compile_cases() -> list[CompileCase]:
    """Every kernel in bfloat16."""
    found: list[CompileCase] = []
    for pair, hidden in _CHANNELS:
        for arch in ("sm_80", "sm_90"):
            sizes = Sizes(256 * 256, pair, hidden, torch.bfloat16, arch)
            found += _cases(sizes, triton, _TRITON)
        if hopper.why_not("output_forward", sizes) is None:
            found += _cases(sizes, hopper, _HOPPER)
    return found + list(_products())


def _cases(
    sizes: Sizes, backend: ModuleType, kernels: dict[str, ModuleType]
) -> Iterator[CompileCase]:
    runs = _runs(sizes, backend)
    for name, module in kernels.items():
        described = f"{name} Z={sizes.pair} C={sizes.hidden} {sizes.arch}"
        run = runs[name.removeprefix("triangle_").removesuffix("_hopper")]
        yield recorded(module, f"{name}_kernel", run, described, sizes.arch)


def _runs(sizes: Sizes, backend: ModuleType) -> dict[str, Callable[[], Any]]:
    """What launches each kernel."""
    pair, hidden = sizes.pair, sizes.hidden
    z, operand = empty(1, 256, 256, pair), empty(hidden, 1, 256, 256)
    mask, numbers = z[..., 0].contiguous(), empty(1, 256, 256, dtype=torch.float32)
    matrices = [empty(hidden, pair), empty(hidden)] * 4 + [empty(pair, pair), empty(pair)]
    projection = ProjectionWeights(*[empty(pair)] * 2, *matrices)
    output = OutputWeights(empty(hidden), empty(hidden), empty(pair, hidden), empty(pair))
    dropout = Dropout(torch.empty(1, dtype=torch.int64, device="meta"), 5, 0.25, -3)
    given = OutputArguments(operand, z, output, dropout)
    gradients = ProjectionGradients(operand, operand, z, z)
    of_projection = ProjectionKept(z, mask, operand, operand, numbers, numbers)
    products = empty(26, 4 * hidden + pair, pair, dtype=torch.float32)
    projected = partial(backend.projection_backward, sizes, gradients, of_projection, projection)
    put_out = partial(backend.output_backward, sizes, given, [numbers, numbers], z)
    finished = partial(
        norm_weights.finish,
        *(products, products[:, :, 0].contiguous(), *projection[:2], projection.matrices),
    )
    return {
        "projection_forward": partial(backend.projection_forward, sizes, z, mask, projection),
        "projection_backward": projected,
        "projection_weights": projected,
        "output_forward": partial(backend.output_forward, sizes, given, z),
        "output_backward": put_out,
        "output_weights": put_out,
        "finish_weights": finished,
    }


def _products() -> Iterator[CompileCase]:
    """Of both directions; forward has one product, backward two."""
    x = empty(128, 1, 256, 256)
    cases = {
        "outgoing": [(x, x.mT)],
        "incoming": [(x.mT, x)],
        "outgoing backward": [(x, x), (x.mT, x)],
        "incoming backward": [(x, x.mT), (x, x)],
    }
    for direction, pairs in cases.items():
        run = partial(hopper_product.products, [Product(*pair) for pair in pairs])
        described = f"triangle_product_hopper {direction}"
        yield recorded(hopper_product, "triangle_product_hopper_kernel", run, described, "sm_90")
