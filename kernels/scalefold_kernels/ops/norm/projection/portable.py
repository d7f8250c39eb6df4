"""Launches of the kernels for any GPU, and of the library's matrix products."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.dot import block, precision
from scalefold_kernels.ops.norm.op import EPS, geometry, launch_backward, launch_forward, shape
from scalefold_kernels.ops.norm.projection.arguments import (
    MAX_FEW_OUTPUTS,
    MAX_NARROW_OUTPUTS,
    Gradients,
    Norm,
    Projections,
    fused,
)
from scalefold_kernels.ops.norm.projection.kernel import (
    projection_backward_kernel,
    projection_forward_kernel,
)
from scalefold_kernels.rows import Rows, rows_of
from scalefold_kernels.sums import column_sums, sum_rows
from scalefold_kernels.tiles import architecture, tile


def forward(x: Tensor, norm: Norm, projections: Projections, out: Tensor, few: Tensor) -> None:
    """Fill ``out``, ``few`` and the statistics."""
    weight, outputs = projections.weight, projections.sizes.outputs
    if not fused(x):
        normed = launch_forward(x, *norm)
        bias = projections.bias
        if bias is not None and projections.sizes.first_biased:
            bias = functional.pad(bias, (projections.sizes.first_biased, 0))
        factors = normed.view(-1, x.shape[-1]), weight.t()
        if bias is None:
            torch.mm(*factors, out=out.view(-1, outputs))
        else:
            torch.addmm(bias, *factors, out=out.view(-1, outputs))
        if projections.first_scale != 1:
            out[..., : projections.first] *= projections.first_scale
        return
    rows = rows_of(x)
    launch = tile("projection_forward", architecture(x.device), shape(rows, P=outputs))
    if outputs == 0:
        launch["CHUNKS"] = 0
    blocks = triton.cdiv(outputs, max(1, launch["CHUNKS"] * launch["BLOCK_P"])) or 1
    programs = triton.cdiv(launch.pop("PROGRAMS"), blocks)
    programs = min(programs, triton.cdiv(rows.num_rows, launch["BLOCK_R"]))
    projection_forward_kernel[(blocks, programs)](
        rows.tensor,
        norm.weight,
        norm.bias,
        weight,
        projections.bias,
        projections.first_scale,
        projections.few,
        projections.few_scale,
        out,
        None if projections.few is None else few,
        norm.stats,
        rows.num_rows,
        outputs,
        projections.first,
        projections.sizes.first_biased,
        projections.sizes.few,
        rows.num_rows // x.shape[0],
        geometry(rows),
        EPS=EPS,
        PROGRAMS=programs,
        BLOCK_S=MAX_FEW_OUTPUTS,
        **_constants(rows),
        **launch,
    )


def backward(
    grad: Tensor | None,
    grad_few: Tensor | None,
    x: Tensor,
    norm: Norm,
    projections: Projections,
    through: Tensor | None,
    gradients: Gradients,
) -> Tensor:
    """Gradient of x; fills ``gradients``."""
    vector, sizes = gradients.vector, projections.sizes
    if grad is None:
        assert grad_few is not None
        assert projections.few is not None
        few, scale = projections.few, projections.few_scale
        return _narrow(grad_few, scale, None, x, norm, few, len(few), through, vector)[0]
    if fused(x) and sizes.outputs <= MAX_NARROW_OUTPUTS:
        weight, first_biased = projections.scaled_weight(), sizes.first_biased
        grad_x, _ = _narrow(grad, 1.0, None, x, norm, weight, first_biased, through, vector)
    else:
        grad_x = _wide(grad.contiguous(), grad_few, x, norm, projections, through, gradients)
    gradients.scale_first(projections)
    return grad_x


def _wide(
    grad: Tensor,
    grad_few: Tensor | None,
    x: Tensor,
    norm: Norm,
    projections: Projections,
    through: Tensor | None,
    gradients: Gradients,
) -> Tensor:
    """Gradient of x; fills ``gradients``, the first projection's as if it had not been scaled."""
    channels, outputs, first_biased, _ = projections.sizes
    grad_normed = grad @ projections.scaled_weight()
    of_norm, of_biases = gradients.sums.tensor_split([2 * channels])
    biased = grad.view(-1, outputs)[:, first_biased:]
    if projections.few is None:
        at_once = len(of_biases) == channels
        sums, others = (gradients.sums, biased) if at_once else (of_norm, None)
        grad_x, normed = launch_backward(grad_normed, x, *norm, through, sums, others)
        if at_once:
            of_biases = of_biases[:0]
    else:
        assert grad_few is not None
        few, scale = projections.few, projections.few_scale
        both = of_norm.new_empty(of_norm.numel() + few.numel())
        grad_x, normed = _narrow(
            grad_few, scale, grad_normed, x, norm, few, len(few), through, both
        )
        of_norm.copy_(both[: 2 * channels])
        gradients.few.copy_(both[2 * channels :].view_as(few))
    assert normed is not None
    torch.mm(grad.view(-1, outputs).t(), normed.view(-1, channels), out=gradients.weight)
    if len(of_biases):
        column_sums(biased, of_biases)
    return grad_x


def _narrow(
    grad: Tensor,
    scale: float,
    grad_normed: Tensor | None,
    x: Tensor,
    norm: Norm,
    weight: Tensor,
    first_biased: int,
    through: Tensor | None,
    parameters: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Gradient of x; normalised rows where others need them; fills ``parameters``."""
    outputs = weight.shape[0]
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    normed = None if grad_normed is None else torch.empty_like(grad_x)
    rows, grad_rows = rows_of(x), rows_of(grad)
    sizes = shape(rows, P=outputs, others=int(grad_normed is not None))
    launch = tile("projection_backward", architecture(x.device), sizes)
    programs = min(launch.pop("PROGRAMS"), triton.cdiv(rows.num_rows, launch["BLOCK_R"]))
    partial = torch.empty(programs, parameters.numel(), dtype=torch.float32, device=x.device)
    projection_backward_kernel[(programs,)](
        grad_rows.tensor,
        scale,
        grad_normed,
        rows.tensor,
        norm.weight,
        norm.bias,
        weight,
        norm.stats,
        through,
        grad_x,
        normed,
        partial,
        rows.num_rows,
        outputs,
        first_biased,
        geometry(grad_rows),
        geometry(rows),
        GRAD_ROW_DIMS=grad_rows.num_dims,
        PROGRAMS=programs,
        BLOCK_P=block(outputs),
        **_constants(rows),
        **launch,
    )
    sum_rows(partial, parameters.dtype, parameters)
    return grad_x, normed


def _constants(rows: Rows) -> dict[str, Any]:
    x = rows.tensor
    return {
        "C": x.shape[-1],
        "ROW_DIMS": rows.num_dims,
        "PRECISION": precision(x.dtype),
        "BLOCK_C": block(x.shape[-1]),
    }
