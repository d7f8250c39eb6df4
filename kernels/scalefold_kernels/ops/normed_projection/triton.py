"""Layer normalisation fused with the projections that follow, for any GPU.

Legend: R rows (all dimensions but the last), C channels, D outputs of the projections, F of one
with few outputs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.dot import block, precision
from scalefold_kernels.loads import load_vector
from scalefold_kernels.ops.norm.triton import (
    load_rows,
    standardise,
    standardise_again,
    standardise_backward,
    store_statistics,
)
from scalefold_kernels.ops.normed_projection.arguments import (
    MAX_FEW_OUTPUTS,
    MAX_NARROW_OUTPUTS,
    Gradients,
    Norm,
    Projections,
    why_not_fused,
)
from scalefold_kernels.rows import Rows, rows_of
from scalefold_kernels.sums import sum_rows


def why_not(function: str, x: Tensor, projections: Projections) -> str | None:
    outputs = projections.sizes.outputs
    if function == "backward" and outputs > MAX_NARROW_OUTPUTS:
        return f"takes {MAX_NARROW_OUTPUTS} outputs at most, found {outputs}"
    return why_not_fused(x)


@triton.jit
def normed_projection_forward_kernel(
    x_ptr, norm_weight_ptr, norm_bias_ptr, weight_ptr, bias_ptr, first_scale, few_weight_ptr,
    few_scale, out_ptr, few_ptr, stats_ptr, num_rows, num_outputs, num_first, first_biased,
    num_few, sample_rows, geometry,
    C: tl.constexpr, ROW_DIMS: tl.constexpr, PRECISION: tl.constexpr,
    CTAS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """``out = layer_norm(x) @ weight.T + bias``, (R, D); the normalised rows stay on the chip.

    ``weight`` is (D, C); ``bias`` holds outputs ``first_biased`` to D, or is None. The first
    ``num_first`` outputs are multiplied by ``first_scale``. ``few`` (B, F,
    sample_rows) is another projection, with few outputs, weight (F, C), times ``few_scale``, or
    None. A CTA keeps the weights of its CHUNKS * BLOCK_D outputs and goes through every
    CTAS-th block of rows, so that weights do not flow from the cache again and again; CTAs
    with the same rows and other outputs run beside each other.
    """
    first = tl.program_id(0) * CHUNKS * BLOCK_D
    columns = tl.arange(0, BLOCK_C)
    inside_c = columns < C
    norm_weight = load_vector(norm_weight_ptr, columns, C)
    norm_bias = load_vector(norm_bias_ptr, columns, C)
    weights = ()
    for chunk in tl.static_range(CHUNKS):
        outputs = first + chunk * BLOCK_D + tl.arange(0, BLOCK_D)
        inside = (outputs < num_outputs)[None, :] & inside_c[:, None]
        weight_offsets = outputs[None, :] * C + columns[:, None]
        weights = weights + (tl.load(weight_ptr + weight_offsets, mask=inside, other=0.0),)
    if few_ptr is not None:
        f = tl.arange(0, BLOCK_F)
        inside_f = f < num_few
        inside = inside_f[None, :] & inside_c[:, None]
        few_weight_places = few_weight_ptr + f[None, :] * C + columns[:, None]
        few_weight = tl.load(few_weight_places, mask=inside, other=0.0)
    for start in range(tl.program_id(1) * BLOCK_R, num_rows, CTAS * BLOCK_R):
        rows = start + tl.arange(0, BLOCK_R)
        inside_r = rows < num_rows
        inside_x = inside_r[:, None] & inside_c[None, :]
        x = load_rows(x_ptr, geometry, rows, columns, inside_x, ROW_DIMS)
        x_hat, mean, rstd = standardise(x.to(tl.float32), inside_c, C, BLOCK_C)
        if tl.program_id(0) == 0:
            store_statistics(stats_ptr, rows, num_rows, mean, rstd)
        normed = (x_hat * norm_weight[None, :] + norm_bias[None, :]).to(weight_ptr.dtype.element_ty)
        out_rows = out_ptr + rows.to(tl.int64)[:, None] * num_outputs
        for chunk in tl.static_range(CHUNKS):
            outputs = first + chunk * BLOCK_D + tl.arange(0, BLOCK_D)
            inside_d = outputs < num_outputs
            out = tl.dot(normed, weights[chunk], input_precision=PRECISION)
            if bias_ptr is not None:
                biased = inside_d & (outputs >= first_biased)
                bias = tl.load(bias_ptr + outputs - first_biased, mask=biased, other=0.0)
                out += bias.to(tl.float32)[None, :]
            out *= tl.where(outputs < num_first, first_scale, 1.0)[None, :]
            inside_out = inside_r[:, None] & inside_d[None, :]
            tl.store(out_rows + outputs[None, :], out, mask=inside_out)
        if few_ptr is not None:
            if tl.program_id(0) == 0:
                few = tl.dot(normed, few_weight, input_precision=PRECISION) * few_scale
                # Offset of row r of a sample: its outputs begin at the sample's first row times F.
                r = rows % sample_rows
                at = (rows - r).to(tl.int64)[:, None] * num_few + f[None, :] * sample_rows
                inside_few = inside_r[:, None] & inside_f[None, :]
                tl.store(few_ptr + at + r[:, None], few, mask=inside_few)


@triton.jit
def normed_projection_backward_kernel(
    grad_ptr, grad_scale, grad_normed_ptr, x_ptr, norm_weight_ptr, norm_bias_ptr, weight_ptr,
    stats_ptr, through_ptr, grad_x_ptr, normed_ptr, partial_ptr, num_rows, num_outputs,
    first_biased, grad_geometry, geometry,
    C: tl.constexpr, GRAD_ROW_DIMS: tl.constexpr, ROW_DIMS: tl.constexpr, PRECISION: tl.constexpr,
    CTAS: tl.constexpr, STAGES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """All gradients of a narrow projection (D <= BLOCK_D) in one pass over x.

    ``grad`` is (R, D), of any strides; results were multiplied by ``grad_scale``. (R, C),
    contiguous: ``grad_x``; and, where they are not None, ``grad_normed``, what the normalised rows'
    gradient has from other projections, ``through``, x's gradient from elsewhere, and ``normed``,
    the normalised rows, written again. ``partial`` is (CTAS, 2 C + D - first_biased + D C): the
    norm's weight and bias, biases of outputs from ``first_biased`` on, the weight.
    """
    cta = tl.program_id(0)
    columns, outputs = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    inside_c, inside_d = columns < C, outputs < num_outputs
    norm_weight = load_vector(norm_weight_ptr, columns, C)
    norm_bias = load_vector(norm_bias_ptr, columns, C)
    weight_offsets = outputs[:, None] * C + columns[None, :]
    inside_w = inside_d[:, None] & inside_c[None, :]
    weight = tl.load(weight_ptr + weight_offsets, mask=inside_w, other=0.0)
    norm_weight_sum = tl.zeros((BLOCK_C,), tl.float32)
    norm_bias_sum = tl.zeros((BLOCK_C,), tl.float32)
    weight_sum = tl.zeros((BLOCK_D, BLOCK_C), tl.float32)
    bias_sum = tl.zeros((BLOCK_D,), tl.float32)
    for start in tl.range(cta * BLOCK_R, num_rows, CTAS * BLOCK_R, num_stages=STAGES):
        rows = start + tl.arange(0, BLOCK_R)
        inside_r = rows < num_rows
        inside = inside_r[:, None] & inside_c[None, :]
        inside_g = inside_r[:, None] & inside_d[None, :]
        grad = load_rows(grad_ptr, grad_geometry, rows, outputs, inside_g, GRAD_ROW_DIMS)
        x = load_rows(x_ptr, geometry, rows, columns, inside, ROW_DIMS).to(tl.float32)
        out_offsets = rows.to(tl.int64)[:, None] * C + columns[None, :]
        x_hat, rstd = standardise_again(x, stats_ptr, rows, num_rows, inside_c, C, BLOCK_C)
        right = x_hat.to(grad.dtype)
        weight_sum = tl.dot(tl.trans(grad), right, weight_sum, input_precision=PRECISION)
        bias_sum += tl.sum(grad.to(tl.float32), 0)
        grad_normed = tl.dot(grad, weight, input_precision=PRECISION) * grad_scale
        if grad_normed_ptr is not None:
            added = tl.load(grad_normed_ptr + out_offsets, mask=inside, other=0.0).to(tl.float32)
            norm_weight_sum += tl.sum(added * x_hat, 0)
            norm_bias_sum += tl.sum(added, 0)
            grad_normed += added
        if normed_ptr is not None:
            normed = x_hat * norm_weight[None, :] + norm_bias[None, :]
            tl.store(normed_ptr + out_offsets, normed, mask=inside)
        grad_x = standardise_backward(grad_normed * norm_weight[None, :], x_hat, rstd, C)
        if through_ptr is not None:
            grad_x += tl.load(through_ptr + out_offsets, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x_ptr + out_offsets, grad_x, mask=inside)
    # So far of the standardised rows; what else the sums over rows are follows from these.
    weight_sum, bias_sum = weight_sum * grad_scale, bias_sum * grad_scale
    norm_weight_sum += tl.sum(weight.to(tl.float32) * weight_sum, 0)
    norm_bias_sum += tl.sum(weight.to(tl.float32) * bias_sum[:, None], 0)
    weight_sum = weight_sum * norm_weight[None, :] + bias_sum[:, None] * norm_bias[None, :]
    biases = num_outputs - first_biased
    partial = partial_ptr + cta * (2 * C + biases + num_outputs * C)
    tl.store(partial + columns, norm_weight_sum, mask=inside_c)
    tl.store(partial + C + columns, norm_bias_sum, mask=inside_c)
    biased = inside_d & (outputs >= first_biased)
    tl.store(partial + 2 * C + outputs - first_biased, bias_sum, mask=biased)
    tl.store(partial + 2 * C + biases + weight_offsets, weight_sum, mask=inside_w)


def forward(x: Tensor, norm: Norm, projections: Projections, out: Tensor, few: Tensor) -> None:
    """Fill ``out``, ``few`` and the statistics."""
    weight, outputs = projections.weight, projections.sizes.outputs
    rows = rows_of(x)
    config = rows.config("normed_projection_forward", D=outputs)
    if outputs == 0:
        config["CHUNKS"] = 0
    blocks = triton.cdiv(outputs, max(1, config["CHUNKS"] * config["BLOCK_D"])) or 1
    ctas = triton.cdiv(config.pop("CTAS"), blocks)
    ctas = min(ctas, triton.cdiv(rows.num_rows, config["BLOCK_R"]))
    normed_projection_forward_kernel[(blocks, ctas)](
        rows.tensor, norm.weight, norm.bias, weight, projections.bias, projections.first_scale,
        projections.few, projections.few_scale, out, None if projections.few is None else few,
        norm.stats, rows.num_rows, outputs, projections.first, projections.sizes.first_biased,
        projections.sizes.few, rows.num_rows // x.shape[0], rows.geometry,
        CTAS=ctas, BLOCK_F=MAX_FEW_OUTPUTS, **_constants(rows), **config,
    )  # fmt: skip


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
    flat_grad = gradients.flat
    if grad is None:
        assert grad_few is not None
        assert projections.few is not None
        few, scale = projections.few, projections.few_scale
        return backward_narrow(grad_few, scale, None, x, norm, few, len(few), through, flat_grad)[0]
    weight, first_biased = projections.scaled_weight(), projections.sizes.first_biased
    grad_x, _ = backward_narrow(grad, 1.0, None, x, norm, weight, first_biased, through, flat_grad)
    gradients.scale_first(projections)
    return grad_x


def backward_narrow(
    grad: Tensor,
    scale: float,
    grad_normed: Tensor | None,
    x: Tensor,
    norm: Norm,
    weight: Tensor,
    first_biased: int,
    through: Tensor | None,
    flat_grad: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Gradient of x; normalised rows where others need them; fills ``flat_grad``."""
    outputs = weight.shape[0]
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    normed = None if grad_normed is None else torch.empty_like(grad_x)
    rows, grad_rows = rows_of(x), rows_of(grad)
    beside = int(grad_normed is not None)
    config = rows.config("normed_projection_backward", D=outputs, others=beside)
    ctas = min(config.pop("CTAS"), triton.cdiv(rows.num_rows, config["BLOCK_R"]))
    partial = torch.empty(ctas, flat_grad.numel(), dtype=torch.float32, device=x.device)
    normed_projection_backward_kernel[(ctas,)](
        grad_rows.tensor, scale, grad_normed, rows.tensor, norm.weight, norm.bias, weight,
        norm.stats, through, grad_x, normed, partial, rows.num_rows, outputs, first_biased,
        grad_rows.geometry, rows.geometry,
        GRAD_ROW_DIMS=grad_rows.num_dims, CTAS=ctas, BLOCK_D=block(outputs),
        **_constants(rows), **config,
    )  # fmt: skip
    sum_rows(partial, flat_grad.dtype, flat_grad)
    return grad_x, normed


def _constants(rows: Rows) -> dict[str, Any]:
    x = rows.tensor
    return {
        "C": x.shape[-1],
        "ROW_DIMS": rows.num_dims,
        "PRECISION": precision(x.dtype),
        "BLOCK_C": block(x.shape[-1]),
    }
