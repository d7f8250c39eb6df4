"""Launch of the forward with several warp groups a program, and what it serves."""

from __future__ import annotations

import triton
from torch import Tensor

from scalefold_kernels.attention.arguments import Inputs, turned
from scalefold_kernels.attention.hopper.forward_groups import forward_groups_kernel
from scalefold_kernels.attention.hopper_plan import dealt
from scalefold_kernels.attention.hopper_tensors import bias_descriptor, bias_rows, rows_descriptor
from scalefold_kernels.tiles import tile
from scalefold_kernels.tma import padded

KEYS = range(129, 385)
"""Of fewer, programs of one group take less time; of more, shared memory holds too little bias."""

MIN_QUERIES = 129
"""Of fewer queries two groups would be empty."""

MIN_CHANNELS = 17
"""Of fewer channels keys and values are small beside what else is copied."""


def serves(inputs: Inputs) -> bool:
    """Whether `forward` can take arguments that `hopper_launch` serves, in less time."""
    return (
        inputs.bias is not None
        and inputs.num_keys in KEYS
        and inputs.num_queries >= MIN_QUERIES
        and inputs.channels >= MIN_CHANNELS
    )


def forward(inputs: Inputs, out: Tensor, lse: Tensor) -> None:
    """Fill ``out`` and ``lse``."""
    q, k, v, gate, mask, bias, bias_scale, _ = inputs
    assert bias is not None
    bias = bias_rows(bias)
    sizes = tile("attention_forward_groups", "sm_90", inputs.shape_class)
    block, tiles = sizes["BLOCK_K"], triton.cdiv(inputs.num_queries, 64 * sizes["GROUPS"])
    blocks = triton.cdiv(inputs.num_keys, block)
    places = max(n for n in range(1, sizes.pop("PLACES") + 1) if blocks % n == 0)
    own = dealt(sizes, inputs, tiles, programs=1, unit=tiles)
    q_desc = rows_descriptor(q, 64)
    forward_groups_kernel[(own.programs, inputs.batch)](
        q_desc,
        rows_descriptor(k, block),
        rows_descriptor(v, block),
        q_desc if gate is None else rows_descriptor(gate, 64),
        bias_descriptor(bias, q, 64, block),
        rows_descriptor(out, 64),
        mask,
        lse,
        *inputs.mask_strides,
        lse.stride(2),
        *inputs.scalars,
        HAS_GATE=gate is not None,
        BIAS_SCALE=bias_scale,
        TURNED=turned(bias),
        C=padded(inputs.channels),
        NUM_BLOCKS=blocks,
        KEYS=max(block, triton.next_power_of_2(inputs.num_keys)),
        PLACES=places,
        **own.constants,
    )
