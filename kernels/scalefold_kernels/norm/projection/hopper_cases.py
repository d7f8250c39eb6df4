"""Configurations of the kernels for Hopper that the offline compilation checks."""

from __future__ import annotations

from typing import Any

from triton.experimental.gluon import language as gl

from scalefold_kernels.compilation import CompileCase
from scalefold_kernels.hopper import ROWS
from scalefold_kernels.norm.op import EPS
from scalefold_kernels.norm.projection.arguments import MAX_FEW_OUTPUTS, Sizes
from scalefold_kernels.norm.projection.hopper.backward import projection_backward_hopper_kernel
from scalefold_kernels.norm.projection.hopper.forward import projection_forward_hopper_kernel
from scalefold_kernels.norm.projection.hopper_launch import MAX_CHANNELS, few_block
from scalefold_kernels.tiles import tile

# Templates, pair, MSA: queries, keys, values and gate, without and with a pair bias.
_SIZES = [
    Sizes(64, 256, 192, 0),
    Sizes(64, 256, 192, 4),
    Sizes(128, 512, 384, 0),
    Sizes(128, 512, 384, 4),
    Sizes(256, 1024, 768, 0),
]

_TYPES = {
    **dict.fromkeys(("stats", "sums"), "*fp32:16"),
    **dict.fromkeys(("num_rows", "sample_rows", "num_tiles", "aside_stride"), "i32"),
    **dict.fromkeys(("first_biased", "aside_stride_s"), "i32:16"),
}


def compile_cases() -> list[CompileCase]:
    """Both kernels at the sizes of the model that they serve."""
    forward = [_case("forward", projection_forward_hopper_kernel, sizes) for sizes in _SIZES]
    backward = [
        _case("backward", projection_backward_hopper_kernel, sizes)
        for sizes in _SIZES
        if sizes.channels <= MAX_CHANNELS["backward"]
    ]
    return forward + backward


def _case(direction: str, kernel: Any, sizes: Sizes) -> CompileCase:
    channels, outputs, first_biased, few = sizes
    shape: dict[str, int | str] = {
        "rows": 65536,
        "C": channels,
        "P": outputs,
        "S": few,
        "dtype": "bfloat16",
    }
    launch = tile(f"projection_{direction}_hopper", "sm_90", shape)
    block_s = few_block(few) if direction == "forward" else MAX_FEW_OUTPUTS
    num_warps, block = launch.pop("num_warps"), launch["BLOCK_P"]
    descriptors = {
        **dict.fromkeys(("x_desc", "through_desc", "normed_desc", "grad_x_desc"), (ROWS, channels)),
        **dict.fromkeys(("grad_desc", "out_desc"), (ROWS, block)),
        "weight_desc": (block, channels),
        "aside_desc": (block_s, channels),
    }
    constexprs = {
        "C": channels, "P": outputs, "S": few, "FIRST_BIASED": first_biased, "EPS": EPS,
        "BLOCK_C": channels, "BLOCK_S": block_s,
        "HAS_BIAS": True, "HAS_THROUGH": True, "HAS_ASIDE": few > 0, **launch,
    }  # fmt: skip
    constexprs = {name: value for name, value in constexprs.items() if name in kernel.arg_names}
    types = _TYPES | {name: _descriptor(*block) for name, block in descriptors.items()}
    signature = {
        name: types.get(name, "*bf16:16") for name in kernel.arg_names if name not in constexprs
    }
    name = f"projection_{direction}_hopper C={channels} P={outputs} S={few}"
    return CompileCase(name, kernel, signature, constexprs, num_warps, architectures=("sm_90",))


def _descriptor(rows: Any, columns: int) -> str:
    block = [int(getattr(rows, "value", rows)), columns]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    return f"tensordesc<bf16{block},{layout!r}>"
