"""A linear map, dropout and the sum with a residual in one pass; and all of its gradients in one.

Legend: R rows (positions along D2), K input channels, C output channels. Rows form lines: (B, D1)
lines of D2 rows. A CTA keeps its weights on the chip and goes through every n-th line of a sample
at the same positions: a mask that is shared by lines is hashed once.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.dot import block, precision
from scalefold_kernels.dropout.kernel import dropout_factor, hash_of
from scalefold_kernels.loads import load_vector
from scalefold_kernels.ops.linear.op import Call
from scalefold_kernels.sums import sum_rows

MAX_CHANNELS = 256
"""Most inputs and outputs: weights of more do not fit on the chip beside the rows."""

MAX_GRADIENT = 128 * 128
"""Elements of a weight: the gradient of a larger one does not fit in a CTA's registers."""


def why_not(function: str, call: Call, *matrices: Tensor) -> str | None:
    weight = matrices[-1]
    if max(weight.shape) > MAX_CHANNELS:
        return f"takes {MAX_CHANNELS} inputs and outputs at most, weight is {tuple(weight.shape)}"
    if function == "backward" and weight.numel() > MAX_GRADIENT:
        return f"takes weights of {MAX_GRADIENT} elements at most, weight is {tuple(weight.shape)}"
    if weight.is_cuda and weight.dtype == torch.float32:
        return "Triton has no fast matrix product of float32"
    return None


@triton.jit
def position(size2, BLOCK_R: tl.constexpr):
    """Sample of a CTA, and the first of its positions in every line."""
    blocks = tl.cdiv(size2, BLOCK_R)
    return tl.program_id(0) // blocks, (tl.program_id(0) % blocks) * BLOCK_R


# One binary for all layers: a number 1 would be folded into the code.
@triton.jit(do_not_specialize=["layer"])
def residual_linear_forward_kernel(
    x_ptr, h_ptr, weight_ptr, bias_ptr, out_ptr, key_ptr, layer, threshold, scale, size1, size2,
    key_stride,
    K: tl.constexpr, C: tl.constexpr, DIMS: tl.constexpr, SHARED: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """``out = x + (h @ weight.T + bias) * factor``; without a key there is no factor.

    ``x`` and ``out`` (B, D1, D2, C), ``h`` (B, D1, D2, K), ``weight`` (C, K); all contiguous.
    """
    sample, first = position(size2, BLOCK_R)
    rows, k = tl.arange(0, BLOCK_R)[:, None], tl.arange(0, BLOCK_K)
    columns = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    r = first + rows
    inside_r, inside_c, inside_k = r < size2, columns < C, k < K
    inside_w = inside_c[:, None] & inside_k[None, :]
    weight = tl.load(weight_ptr + columns[:, None] * K + k[None, :], mask=inside_w, other=0.0)
    bias = load_vector(bias_ptr, columns, C)[None, :]
    if key_ptr is not None:
        state = hash_of(key_ptr, key_stride, sample, layer)
        if SHARED == 1:
            factor = dropout_factor(state, 0, r, columns[None, :], threshold, scale, DIMS, SHARED)
    for line in tl.range(tl.program_id(1), size1, tl.num_programs(1), num_stages=STAGES):
        start = (sample * size1 + line).to(tl.int64) * size2 + first
        at = rows * K + k[None, :]
        h = tl.load(h_ptr + start * K + at, mask=inside_r & inside_k[None, :], other=0.0)
        at = rows * C + columns[None, :]
        inside = inside_r & inside_c[None, :]
        x = tl.load(x_ptr + start * C + at, mask=inside, other=0.0)
        update = tl.dot(h, weight.T, input_precision=PRECISION) + bias
        if key_ptr is not None:
            if SHARED != 1:
                c = columns[None, :]
                factor = dropout_factor(state, line, r, c, threshold, scale, DIMS, SHARED)
            update *= factor
        out = x.to(tl.float32) + update
        tl.store(out_ptr + start * C + at, out, mask=inside)


@triton.jit(do_not_specialize=["layer"])
def residual_linear_backward_kernel(
    grad_ptr, h_ptr, weight_ptr, grad_h_ptr, partial_ptr, key_ptr, layer, threshold, scale,
    size1, size2, key_stride,
    K: tl.constexpr, C: tl.constexpr, DIMS: tl.constexpr, SHARED: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradients of ``h``, weight and bias, from one pass over the result's gradient and ``h``.

    A CTA has all C outputs and BLOCK_K of the inputs. ``partial`` is (CTAs, C K + C): weight and
    bias, the sum of each CTA's rows in a fixed order.
    """
    sample, first = position(size2, BLOCK_R)
    rows, columns = tl.arange(0, BLOCK_R)[:, None], tl.arange(0, BLOCK_C)
    k = tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K)
    r = first + rows
    inside_r, inside_c, inside_k = r < size2, columns < C, k < K
    weight_at = columns[:, None] * K + k[None, :]
    inside_w = inside_c[:, None] & inside_k[None, :]
    weight = tl.load(weight_ptr + weight_at, mask=inside_w, other=0.0)
    weight_sum = tl.zeros((BLOCK_C, BLOCK_K), tl.float32)
    bias_sum = tl.zeros((BLOCK_C,), tl.float32)
    if key_ptr is not None:
        state = hash_of(key_ptr, key_stride, sample, layer)
        if SHARED == 1:
            factor = dropout_factor(state, 0, r, columns[None, :], threshold, scale, DIMS, SHARED)
    for line in tl.range(tl.program_id(1), size1, tl.num_programs(1), num_stages=STAGES):
        start = (sample * size1 + line).to(tl.int64) * size2 + first
        at = rows * C + columns[None, :]
        grad = tl.load(grad_ptr + start * C + at, mask=inside_r & inside_c[None, :], other=0.0)
        at = rows * K + k[None, :]
        inside = inside_r & inside_k[None, :]
        h = tl.load(h_ptr + start * K + at, mask=inside, other=0.0)
        if key_ptr is not None:
            if SHARED != 1:
                c = columns[None, :]
                factor = dropout_factor(state, line, r, c, threshold, scale, DIMS, SHARED)
            grad = (grad.to(tl.float32) * factor).to(h.dtype)
        bias_sum += tl.sum(grad.to(tl.float32), 0)
        grad_h = tl.dot(grad, weight, input_precision=PRECISION)
        tl.store(grad_h_ptr + start * K + at, grad_h, mask=inside)
        weight_sum = tl.dot(grad.T, h, weight_sum, input_precision=PRECISION)
    cta = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    partial = partial_ptr + cta.to(tl.int64) * (C * K + C)
    tl.store(partial + weight_at, weight_sum, mask=inside_w)
    if tl.program_id(2) == 0:
        tl.store(partial + C * K + columns, bias_sum, mask=inside_c)


def forward(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, call: Call) -> Tensor:
    """The sum of ``x`` and the update; all tensors are contiguous."""
    out = torch.empty_like(x)
    config = call.config("residual_linear_forward")
    config["BLOCK_C"] = min(config["BLOCK_C"], block(call.channels))
    grid = _grid(call, config)
    residual_linear_forward_kernel[(*grid, triton.cdiv(call.channels, config["BLOCK_C"]))](
        x, h, weight, bias, out, *_arguments(call),
        BLOCK_K=block(call.inputs), **_constants(call, weight), **config,
    )  # fmt: skip
    return out


def backward(
    grad: Tensor, h: Tensor, weight: Tensor, call: Call, grad_h: Tensor, flat_grad: Tensor
) -> None:
    """Fill the gradient of ``h`` and those of weight and bias as one vector; all contiguous."""
    channels, inputs = weight.shape
    config = call.config("residual_linear_backward")
    config["BLOCK_K"] = min(config["BLOCK_K"], block(inputs))
    grid = _grid(call, config)
    partial = flat_grad.new_empty(grid[0] * grid[1], flat_grad.numel(), dtype=torch.float32)
    residual_linear_backward_kernel[(*grid, triton.cdiv(inputs, config["BLOCK_K"]))](
        grad, h, weight, grad_h, partial, *_arguments(call),
        BLOCK_C=block(channels), **_constants(call, weight), **config,
    )  # fmt: skip
    sum_rows(partial, flat_grad.dtype, flat_grad)


def _grid(call: Call, config: dict[str, int]) -> tuple[int, int]:
    """Blocks of positions, and groups of lines; takes CTAS out of ``config``."""
    blocks = call.batch * triton.cdiv(call.size2, config["BLOCK_R"])
    return blocks, max(1, min(call.size1, config.pop("CTAS") // blocks))


def _arguments(call: Call) -> tuple[Any, ...]:
    """Arguments of the kernels from ``key_ptr`` to ``key_stride``."""
    return *call.hashing, call.size1, call.size2, call.key_stride


def _constants(call: Call, weight: Tensor) -> dict[str, int | str]:
    return {
        "K": call.inputs,
        "C": call.channels,
        "DIMS": call.dims,
        "SHARED": call.shared,
        "PRECISION": precision(weight.dtype),
    }
