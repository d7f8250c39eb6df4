"""Configurations for the offline compilation."""

from __future__ import annotations

import triton
from tests.kernels.offline.case import CompileCase

from scalefold_kernels.attention.pointwise.kernel import (
    pointwise_attention_backward_kernel,
    pointwise_attention_forward_kernel,
)
from scalefold_kernels.tiles import tile

_KERNELS = {
    "pointwise_attention_forward": pointwise_attention_forward_kernel,
    "pointwise_attention_backward": pointwise_attention_backward_kernel,
}


def compile_cases() -> list[CompileCase]:
    """Templates' sizes, and one that fills no block."""
    return [_case(table, heads, channels) for table in _KERNELS for heads, channels in _SIZES]


_SIZES = [(4, 16), (3, 24)]


def _case(table: str, heads: int, channels: int) -> CompileCase:
    kernel = _KERNELS[table]
    sizes = tile(table, "sm_90", {"P": 65536, "T": 4, "H": heads, "C": channels})
    num_warps = sizes.pop("num_warps")
    blocks = {"BLOCK_H": triton.next_power_of_2(heads), "BLOCK_C": triton.next_power_of_2(channels)}
    blocks["BLOCK_P"] = sizes.pop("ELEMENTS") // (blocks["BLOCK_H"] * blocks["BLOCK_C"])
    signature = {name: "*bf16:16" for name in kernel.arg_names if name.endswith("_ptr")}
    signature |= {
        "mask_ptr": "*fp32:16",
        "num_keys": "i32",
        "num_positions": "i32",
        "scale": "fp32",
    }
    constexprs = {"H": heads, "C": channels, **blocks, **sizes}
    name = f"{table} H={heads} C={channels}"
    return CompileCase(name, kernel, signature, constexprs, num_warps=num_warps)
