"""What the kernels of global attention and their launches share; legend as in `forward`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.dot import block, precision
from scalefold_kernels.ops.global_attention.op import Parameters
from scalefold_kernels.ops.norm.op import EPS
from scalefold_kernels.tiles import architecture, tile

MASKED_LOGIT = tl.constexpr(1e9)
"""As in `scalefold.ops.attention`."""

MEAN_EPS = tl.constexpr(1e-10)
"""As in `scalefold.ops.global_attention`."""


@triton.jit
def column_number():
    """Place of the CTA's column among those of all samples."""
    return tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)


@triton.jit
def column_start(stride_b, stride_n):
    """Offset of the CTA's column."""
    return tl.program_id(1).to(tl.int64) * stride_b + tl.program_id(0).to(tl.int64) * stride_n


@triton.jit
def load_vector(ptr, at, size: tl.constexpr):
    """In float32; 0 beyond the end."""
    return tl.load(ptr + at, mask=at < size, other=0.0).to(tl.float32)


@triton.jit
def load_matrix(ptr, rows, columns, inside_rows, COLUMNS: tl.constexpr):
    """A contiguous matrix in float32; 0 outside."""
    inside = inside_rows[:, None] & (columns < COLUMNS)[None, :]
    at = rows[:, None] * COLUMNS + columns[None, :]
    return tl.load(ptr + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def load_rows(ptr, stride, rows, num_rows, c, C: tl.constexpr):
    """A block of rows of the column; 0 outside."""
    at = rows.to(tl.int64)[:, None] * stride + c[None, :]
    return tl.load(ptr + at, mask=(rows < num_rows)[:, None] & (c < C)[None, :], other=0.0)


@triton.jit
def store_rows(ptr, value, stride, rows, num_rows, c, C: tl.constexpr):
    """A block of rows of the column."""
    at = rows.to(tl.int64)[:, None] * stride + c[None, :]
    inside = (rows < num_rows)[:, None] & (c < C)[None, :]
    tl.store(ptr + at, value.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def load_kept(mask_ptr, stride, rows, num_rows):
    """The mask of a block of rows; 0 beyond the last."""
    at = rows.to(tl.int64) * stride
    return tl.load(mask_ptr + at, mask=rows < num_rows, other=0.0).to(tl.float32)


@triton.jit
def with_mask(logit, kept, rows, num_rows):
    """Logits (S, H) under the mask; what is beyond the last row weighs nothing."""
    logit += ((kept - 1.0) * MASKED_LOGIT)[:, None]
    return tl.where((rows < num_rows)[:, None], logit, float("-inf"))


@triton.jit
def by_head(vector, member):
    """(D,) as (H, D), zero outside each head's own channels."""
    return tl.where(member, vector[None, :], 0.0)


@triton.jit
def gate_parameters(weight_ptr, bias_ptr, norm_weight, norm_bias, c, d, C: tl.constexpr,
                    D: tl.constexpr, kind: tl.constexpr):  # fmt: skip
    """Weight and bias of the gate as a function of x_hat."""
    weight = load_matrix(weight_ptr, d, c, d < D, C)
    bias = load_vector(bias_ptr, d, D) + tl.sum(weight * norm_bias[None, :], 1)
    return (weight * norm_weight[None, :]).to(kind), bias


@triton.jit
def gates(x_hat, gate_weight, gate_bias, PRECISION: tl.constexpr):
    """(S, D)."""
    return tl.sigmoid(tl.dot(x_hat, gate_weight.T, input_precision=PRECISION) + gate_bias[None, :])


@triton.jit
def load_softmax(ptr, column, h, H: tl.constexpr):
    """Largest logit and sum of each head."""
    highest = load_vector(ptr + column * 2 * H, h, H)
    return highest, tl.load(ptr + (column * 2 + 1) * H + h, mask=h < H, other=1.0)


def grid_of(x: Tensor) -> tuple[int, int]:
    """A CTA a column."""
    return x.shape[2], x.shape[0]


def head_scale(parameters: Parameters) -> float:
    """What queries are multiplied by."""
    return float(parameters.key_weight.shape[0] ** -0.5)


def constants(kernel: str, x: Tensor, parameters: Parameters) -> dict[str, int | float | str]:
    """Sizes and the tile, as all kernels take them."""
    _, rows, _, channels = x.shape
    every, head = parameters.query_weight.shape[0], parameters.key_weight.shape[0]
    dtype = str(x.dtype).removeprefix("torch.")
    shape: dict[str, int | str] = {"S": rows, "C": channels, "D": every, "dtype": dtype}
    return {
        "C": channels,
        "D": every,
        "A": head,
        "EPS": EPS,
        "PRECISION": precision(x.dtype),
        "BLOCK_C": block(channels),
        "BLOCK_D": block(every),
        "BLOCK_H": block(every // head),
        **tile(f"global_attention_{kernel}", architecture(x.device), shape),
    }


def strides(*tensors: Tensor) -> list[int]:
    """Of samples, rows and columns."""
    return [stride for x in tensors for stride in x.stride()[:3]]
