"""Configurations that the offline compilation checks."""

from dataclasses import replace

from tests.kernels.offline.case import CompileCase

from scalefold_kernels.optimiser.kernel import (
    accumulate_kernel,
    gather_kernel,
    square_sums_kernel,
    update_kernel,
)
from scalefold_kernels.tiles import tile

_FP32, _FP64, _BF16 = "*fp32:16", "*fp64:16", "*bf16:16"
_SIZES = {"num_narrow": "i32:16", "num_elements": "i32:16"}
_CLIP = {"CLIP": True, "CLIP_NORM": 0.1, "CLIP_EPS": 1e-6}
_ADAM = {
    "SCALE": 1.0,
    "LOG_BETA1": -0.105,
    "LOG_BETA2": -0.001,
    "ONE_MINUS_BETA1": 0.1,
    "ONE_MINUS_BETA2": 0.001,
    "EPS": 1e-6,
    "SHARE": 0.001,
    "FIRST_SHARE": 0.001,
}


def compile_cases() -> list[CompileCase]:
    """All kernels, for a model of 93 million parameters."""
    return [
        replace(case, name=f"{case.name} {arch}", architectures=(arch,))
        for arch in ("sm_80", "sm_90")
        for case in _cases(arch)
    ]


def _cases(arch: str) -> list[CompileCase]:
    """With the tiles of an architecture."""
    names = ("norm", "update", "gather")
    norm, update, gather = (_tile(f"optimiser_{name}", arch) for name in names)
    scalars = dict.fromkeys(("updates_ptr", "averaged_ptr", "counts_ptr"), _FP64)
    gradient = {"narrow_ptr": _BF16, "wide_ptr": _FP32, "sums_ptr": _FP32}
    buffers = ("weights_ptr", "first_moment_ptr", "second_moment_ptr", "average_ptr", "norm_ptr")
    return [
        CompileCase(
            "gather",
            gather_kernel,
            {"buffer_ptr": _BF16, "sources_ptr": "*i64:16", "pieces_ptr": "*i64:16"},
            gather[0],
            *gather[1],
        ),
        CompileCase(
            "square_sums",
            square_sums_kernel,
            {**gradient, **scalars, **_SIZES},
            {"HAS_NARROW": True, "ITERATIONS": 12, **norm[0]},
            *norm[1],
        ),
        CompileCase(
            "accumulate",
            accumulate_kernel,
            {**gradient, "total_ptr": _FP32, "norm_ptr": _FP32, **_SIZES},
            {**_CLIP, "FIRST": False, "HAS_NARROW": True, "NUM_SUMS": 1024, **update[0]},
            *update[1],
        ),
        CompileCase(
            "update",
            update_kernel,
            {
                **gradient,
                **scalars,
                **dict.fromkeys(buffers, _FP32),
                "working_ptr": _BF16,
                "rate_ptr": _FP64,
                "finite_ptr": "*i1:16",
                "applied_ptr": "*i1:16",
                **_SIZES,
            },
            {
                **_CLIP,
                **_ADAM,
                "HAS_NARROW": True,
                "HAS_WORKING": True,
                "NUM_SUMS": 1024,
                **update[0],
            },
            *update[1],
        ),
    ]


def _tile(name: str, arch: str) -> tuple[dict[str, int], tuple[int, int]]:
    """Block sizes; warps and stages."""
    sizes = tile(name, arch, {"P": 93_000_000})
    return sizes, (sizes.pop("num_warps"), sizes.pop("num_stages"))
