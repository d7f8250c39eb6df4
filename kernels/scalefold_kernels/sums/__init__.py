"""Sums over rows in a fixed order, for the gradients of parameters.

Each CTA of a kernel writes one row, and a second launch adds these up. Launches of all ops share
these kernels. They are no op and have no backends: one Triton kernel serves every GPU.

Legend: R rows, W columns.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.tiles import Config, config_for


@triton.jit
def sum_partials_kernel(  # type: ignore[no-untyped-def]
    partial_ptr, out_ptr, num_rows, width, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr
):
    """Sum (num_rows, width) over its first dimension, in a fixed order."""
    sum_block(partial_ptr, out_ptr, tl.program_id(0), num_rows, width, BLOCK_R, BLOCK_W)


@triton.jit
def sum_several_kernel(  # type: ignore[no-untyped-def]
    partials, outs, num_rows, widths, ends, BLOCKS_R: tl.constexpr, BLOCKS_W: tl.constexpr
):
    """`sum_partials_kernel` of several matrices, each up to its end of the CTAs."""
    cta = tl.program_id(0)
    for n in tl.static_range(len(BLOCKS_R)):
        start = 0 if n == 0 else ends[n - 1]
        if (cta >= start) & (cta < ends[n]):
            sum_block(
                partials[n], outs[n], cta - start, num_rows[n], widths[n],
                BLOCKS_R[n], BLOCKS_W[n],
            )  # fmt: skip


@triton.jit
def sum_block(  # type: ignore[no-untyped-def]
    partial_ptr, out_ptr, block, num_rows, width, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr
):
    """Some columns of the sum."""
    columns = block * BLOCK_W + tl.arange(0, BLOCK_W)
    inside_w = columns < width
    total = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    for start in range(0, num_rows, BLOCK_R):
        rows = start + tl.arange(0, BLOCK_R)
        inside = (rows < num_rows)[:, None] & inside_w[None, :]
        offsets = rows.to(tl.int64)[:, None] * width + columns[None, :]
        total += tl.load(partial_ptr + offsets, mask=inside, other=0.0)
    tl.store(out_ptr + columns, tl.sum(total, 0), mask=inside_w)


@triton.jit
def column_sums_kernel(  # type: ignore[no-untyped-def]
    x_ptr, partial_ptr, num_rows, width, stride,
    CTAS: tl.constexpr, STAGES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Each CTA's sums over rows, (CTAS, width), of a matrix with this row stride."""
    cta = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    inside_w = columns < width
    total = tl.zeros((BLOCK_R, BLOCK_W), tl.float32)
    for start in tl.range(cta * BLOCK_R, num_rows, CTAS * BLOCK_R, num_stages=STAGES):
        rows = start + tl.arange(0, BLOCK_R)
        inside = (rows < num_rows)[:, None] & inside_w[None, :]
        offsets = rows.to(tl.int64)[:, None] * stride + columns[None, :]
        total += tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(partial_ptr + cta * width + columns, tl.sum(total, 0), mask=inside_w)


def sum_rows(x_RW: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """Sum of a contiguous float32 matrix over its rows, in ``out`` (W elements) if it is given."""
    num_rows, width = x_RW.shape
    if out is None:
        out = torch.empty(width, dtype=dtype, device=x_RW.device)
    config = _config("sum_partials", x_RW)
    sum_partials_kernel[(triton.cdiv(width, config["BLOCK_W"]),)](
        x_RW, out, num_rows, width, **config
    )
    return out


def sum_several(matrices: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """`sum_rows` of several matrices, each into its ``out``, in one launch."""
    configs = [_config("sum_several", x_RW) for x_RW in matrices]
    widths = tuple(x_RW.shape[1] for x_RW in matrices)
    blocks = [triton.cdiv(w, config["BLOCK_W"]) for w, config in zip(widths, configs, strict=True)]
    sum_several_kernel[(sum(blocks),)](
        tuple(matrices), tuple(outs), tuple(map(len, matrices)), widths, tuple(accumulate(blocks)),
        BLOCKS_R=tuple(config["BLOCK_R"] for config in configs),
        BLOCKS_W=tuple(config["BLOCK_W"] for config in configs), num_warps=4,
    )  # fmt: skip


def _config(table: str, x_RW: Tensor) -> Config:
    return config_for(table, x_RW, rows=x_RW.shape[0], width=x_RW.shape[1])


def column_sums(x_RW: Tensor, out: Tensor) -> None:
    """Sum a matrix with rows of any stride over its rows, into ``out``."""
    num_rows, width = x_RW.shape
    config = _config("column_sums", x_RW)
    ctas = min(config.pop("CTAS"), triton.cdiv(num_rows, config["BLOCK_R"]))
    partial = torch.empty(ctas, width, dtype=torch.float32, device=x_RW.device)
    column_sums_kernel[(triton.cdiv(width, config["BLOCK_W"]), ctas)](
        x_RW, partial, num_rows, width, x_RW.stride(0), CTAS=ctas, **config
    )
    sum_rows(partial, out.dtype, out)
