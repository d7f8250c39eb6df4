"""Configurations that the offline compilation checks."""

from tests.kernels.offline.case import CompileCase

from scalefold_kernels.dropout.kernel import residual_dropout_kernel
from scalefold_kernels.tiles import tile


def compile_cases() -> list[CompileCase]:
    """Each shared dimension of a pair representation, forward and backward."""
    return [
        _case(shared, kind, has_x)
        for shared in (0, 1, 2)
        for kind in ("bf16", "fp32")
        for has_x in (True, False)
    ]


def _case(shared: int, kind: str, has_x: bool) -> CompileCase:
    shape = {"S": 256 if shared else 1, "columns": 256 * 128, "shared": shared, "dtype": kind}
    sizes = tile("residual_dropout", "sm_90", shape)
    launch = sizes.pop("num_warps"), sizes.pop("num_stages")
    pointer = f"*{kind}:16"
    strides = [f"{t}_stride{d}" for t in ("x", "update") for d in ("_b", 1, 2)]
    signature = {
        "update_ptr": pointer,
        "out_ptr": pointer,
        "key_ptr": "*i64:16",
        "layer": "i32",
        "threshold": "i32:16",
        "scale": "fp32",
        **dict.fromkeys(["size1", "size2", "size3", *strides], "i32:16"),
        **({"x_ptr": pointer} if has_x else {}),
    }
    constexprs = {
        **({} if has_x else {"x_ptr": None}),
        **dict.fromkeys(["x_stride3", "update_stride3", "key_stride"], 1),
        "DIMS": 3,
        "SHARED": shared,
        "HAS_X": has_x,
        "INT64": False,
        **sizes,
    }
    name = f"shared {shared} {kind}{'' if has_x else ' gradient'}"
    return CompileCase(name, residual_dropout_kernel, signature, constexprs, *launch)
