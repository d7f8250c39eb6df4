"""Launch of the kernel for heads of 8 channels, and what it serves."""

from __future__ import annotations

import triton
from torch import Tensor

from scalefold_kernels.attention.arguments import Inputs
from scalefold_kernels.attention.hopper.narrow.backward_keys import narrow_keys_kernel
from scalefold_kernels.attention.hopper_backward import Shared
from scalefold_kernels.attention.hopper_plan import dealt
from scalefold_kernels.copy_engine import VECTOR
from scalefold_kernels.tiles import tile

CHANNELS = 8
"""Half of what a product of a whole warp group takes."""

MAX_QUERIES = 256
"""Of more, shared memory does not hold the bias of two programs."""


def serves(inputs: Inputs, shared: Shared) -> bool:
    """Whether `keys` can take arguments that `hopper_launch` serves."""
    return (
        inputs.bias is not None
        and inputs.channels == CHANNELS
        and inputs.num_queries <= MAX_QUERIES
        and inputs.k.stride() == inputs.v.stride()
        and shared.q.stride() == shared.grad_ungated.stride()
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
        tuple(step // VECTOR for step in shared.q.stride()[:4]),
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
