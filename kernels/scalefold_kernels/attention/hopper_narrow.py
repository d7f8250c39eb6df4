"""Launches of the kernels for heads of 8 channels, and what they serve."""

from __future__ import annotations

import triton
from torch import Tensor

from scalefold_kernels.attention.arguments import Inputs, turned
from scalefold_kernels.attention.hopper.narrow.backward_keys import narrow_keys_kernel
from scalefold_kernels.attention.hopper.narrow.forward import narrow_forward_kernel
from scalefold_kernels.attention.hopper_backward import Shared
from scalefold_kernels.attention.hopper_plan import dealt
from scalefold_kernels.attention.hopper_tensors import bias_descriptor, bias_rows, rows_descriptor
from scalefold_kernels.limits import needs_int64
from scalefold_kernels.tiles import tile
from scalefold_kernels.tma import VECTOR

CHANNELS = 8
"""Half of what a product of a whole warp group takes."""

MAX_QUERIES = 256
"""Of more, shared memory does not hold the bias of two programs."""

MAX_KEYS = 256
"""Of more, shared memory does not hold the bias of two heads three times."""


def side_by_side(x: Tensor) -> Tensor:
    """Two heads as one of twice the channels: (B, R, N, H / 2, 2 C)."""
    return x.unflatten(3, (-1, 2)).flatten(4)


def serves_forward(inputs: Inputs) -> bool:
    """Whether `forward` can take arguments that `hopper_launch` serves."""
    heads = [x for x in (inputs.q, inputs.k, inputs.v, inputs.gate) if x is not None]
    return (
        inputs.bias is not None
        and inputs.channels == CHANNELS
        and inputs.num_heads % 2 == 0
        and inputs.num_keys <= MAX_KEYS
        and all(x.stride(3) == CHANNELS for x in heads)
        and not needs_int64(_row(inputs.q))
    )


def _row(x: Tensor) -> Tensor:
    """The kernels count its positions in 32 bits."""
    return x[:1, :1]


def _vectors(x: Tensor) -> tuple[int, ...]:
    """Strides without that of channels, in vectors: so the compiler knows what divides them."""
    return tuple(step // VECTOR for step in x.stride()[:4])


def forward(inputs: Inputs, out: Tensor, lse: Tensor) -> None:
    """Fill ``out`` and ``lse``."""
    q, k, v, gate, mask, bias, bias_scale, _ = inputs
    assert bias is not None
    bias = bias_rows(bias)
    sizes = tile("attention_narrow_forward", "sm_90", inputs.shape_class)
    programs, block = sizes.pop("PROGRAMS"), sizes["BLOCK_K"]
    blocks, tiles = triton.cdiv(inputs.num_keys, block), triton.cdiv(inputs.num_queries, 64)
    places = max(n for n in range(1, sizes.pop("PLACES") + 1) if blocks % n == 0)
    own = dealt(sizes, inputs._replace(q=side_by_side(q)), tiles, programs, tiles)
    out_desc = rows_descriptor(side_by_side(out), 64)
    narrow_forward_kernel[(own.programs, inputs.batch)](
        q,
        rows_descriptor(side_by_side(k), block),
        rows_descriptor(side_by_side(v), block),
        out_desc if gate is None else rows_descriptor(side_by_side(gate), 64),
        bias_descriptor(bias, q, 64, block),
        out_desc,
        mask,
        lse,
        *q.stride()[:3],
        *inputs.mask_strides,
        lse.stride(2),
        *inputs.scalars,
        HAS_GATE=gate is not None,
        BIAS_SCALE=bias_scale,
        TURNED=turned(bias),
        NUM_BLOCKS=blocks,
        KEYS=max(block, triton.next_power_of_2(inputs.num_keys)),
        PLACES=places,
        **own.constants,
    )


def serves(inputs: Inputs, shared: Shared) -> bool:
    """Whether `keys` can take arguments that `hopper_launch` serves."""
    return (
        inputs.bias is not None
        and inputs.channels == CHANNELS
        and inputs.num_queries <= MAX_QUERIES
        and inputs.k.stride() == inputs.v.stride()
        and not needs_int64(*map(_row, (shared.q, shared.grad_ungated, inputs.k)))
    )


def keys(
    inputs: Inputs,
    bias: Tensor | None,
    lse: Tensor,
    shared: Shared,
    grad_k: Tensor,
    grad_v: Tensor,
) -> None:
    """Fill ``grad_k`` and ``grad_v``; as `hopper_backward.keys`."""
    assert bias is not None
    k, v = inputs.k, inputs.v
    sizes = tile("attention_narrow_keys", "sm_90", inputs.shape_class)
    programs, block = sizes.pop("PROGRAMS"), 16 * sizes["num_warps"]
    own = dealt(sizes, inputs, triton.cdiv(inputs.num_keys, block), programs)
    narrow_keys_kernel[(own.programs, inputs.batch)](
        shared.q,
        k,
        v,
        shared.grad_ungated,
        bias,
        inputs.mask,
        lse,
        shared.delta,
        grad_k,
        grad_v,
        _vectors(shared.q),
        _vectors(shared.grad_ungated),
        k.stride()[:4],
        v.stride()[:4],
        grad_k.stride()[:4],
        bias.stride(),
        inputs.mask_strides,
        lse.stride(2),
        *inputs.scalars[:4],
        BIAS_SCALE=inputs.bias_scale,
        M=block,
        BLOCKS=triton.next_power_of_2(triton.cdiv(inputs.num_queries, sizes["BLOCK"])),
        KEYS=max(32, triton.next_power_of_2(inputs.num_keys)),
        **own.constants,
    )
