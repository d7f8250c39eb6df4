"""Forward of attention on any GPU; legend as in `parts`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.ops.attention.arguments import Inputs
from scalefold_kernels.ops.attention.triton.parts import (
    LOG2E,
    count_unmasked,
    grid_of,
    load,
    logits,
    place_of_cta,
    place_operands,
    row_offset,
    sigmoid,
    store,
    strides,
    tile_of,
)


@triton.jit
def forward_kernel(
    q, k, v, gate, mask, bias, out, lse, rest,
    q_strides, k_strides, v_strides, gate_strides, mask_strides, bias_strides, out_strides,
    rest_strides, lse_stride, num_rows, num_heads, num_queries, num_keys, scale,
    C: tl.constexpr, HAS_GATE: tl.constexpr, HAS_BIAS: tl.constexpr, BIAS_SCALE: tl.constexpr,
    KEEPS_REST: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One CTA: a block of queries of one row and head."""
    batch, row, head, first_q = place_of_cta(num_rows, num_heads, BLOCK_Q)
    q, k, v = place_operands(q, k, v, q_strides, k_strides, v_strides, batch, row, head)
    out += row_offset(out_strides, batch, row, head)
    mask += batch.to(tl.int64) * mask_strides[0] + row.to(tl.int64) * mask_strides[1]
    lse += ((batch * num_rows + row).to(tl.int64) * num_heads + head) * lse_stride
    unmasked = count_unmasked(mask, mask_strides[2], num_keys, BLOCK_K)
    alive = (unmasked > 0).to(tl.float32)
    queries = first_q + tl.arange(0, BLOCK_Q)
    if HAS_BIAS:
        bias += batch.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]

    q_tile = load(q, q_strides[2], first_q, num_queries, C, BLOCK_Q)
    q_tile = (q_tile * (scale * (1.0 / BIAS_SCALE))).to(q_tile.dtype)
    highest = tl.full((BLOCK_Q,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    o = tl.zeros((BLOCK_Q, q_tile.shape[1]), tl.float32)
    for first_k in range(0, num_keys, BLOCK_K):
        keys = first_k + tl.arange(0, BLOCK_K)
        k_tile = load(k, k_strides[2], first_k, num_keys, C, BLOCK_K)
        v_tile = load(v, v_strides[2], first_k, num_keys, C, BLOCK_K)
        s = logits(
            q_tile, k_tile, queries, keys, bias, bias_strides, mask, mask_strides[2],
            num_queries, num_keys, unmasked, alive, HAS_BIAS,
        )  # fmt: skip
        new_highest = tl.maximum(highest, tl.max(s, 1) * (LOG2E * BIAS_SCALE))
        p = tl.exp2(s * (LOG2E * BIAS_SCALE) - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(p, 1)
        o = tl.dot(p.to(v_tile.dtype), v_tile, o * shrink[:, None], input_precision="ieee")
        highest = new_highest
    o = o / total[:, None]
    if HAS_GATE:
        gate += row_offset(gate_strides, batch, row, head)
        o *= sigmoid(load(gate, gate_strides[2], first_q, num_queries, C, BLOCK_Q))
    store(out, o, out_strides[2], first_q, num_queries, C, BLOCK_Q)
    if KEEPS_REST:
        rest += row_offset(rest_strides, batch, row, head)
        o -= o.to(out.dtype.element_ty).to(tl.float32)
        store(rest, o, rest_strides[2], first_q, num_queries, C, BLOCK_Q)
    tl.store(lse + queries, highest + tl.log2(total), mask=queries < num_queries)


def forward(inputs: Inputs, out: Tensor, lse: Tensor, rest: Tensor | None) -> None:
    """Fill ``out``, ``lse`` and, if it is wanted, ``rest``: see `Kept`."""
    q, k, v, gate, mask, bias, *_ = inputs
    sizes = tile_of("attention_forward", inputs)
    forward_kernel[grid_of(inputs, inputs.num_queries, sizes["BLOCK_Q"])](
        q, k, v, gate, mask, bias, out, lse, rest, *map(strides, (q, k, v, gate)),
        inputs.mask_strides, strides(bias), strides(out), strides(rest), lse.stride(2),
        *inputs.scalars,
        C=inputs.channels, HAS_GATE=gate is not None, HAS_BIAS=bias is not None,
        BIAS_SCALE=inputs.bias_scale, KEEPS_REST=rest is not None, **sizes,
    )  # fmt: skip
