"""Configurations that the offline compilation checks."""

from tests.kernels.offline.case import CompileCase

from scalefold_kernels.ops.gather.triton import gather_kernel
from scalefold_kernels.tiles import find_config


def compile_cases() -> list[CompileCase]:
    """For a model of 93 million parameters."""
    signature = {"buffer_ptr": "*bf16:16", "sources_ptr": "*i64:16", "pieces_ptr": "*i64:16"}
    return [_case(signature, arch) for arch in ("sm_80", "sm_90")]


def _case(signature: dict[str, str], arch: str) -> CompileCase:
    config = find_config("gather", arch, {"elements": 93_000_000})
    launch = config.pop("num_warps"), config.pop("num_stages")
    return CompileCase(f"gather {arch}", gather_kernel, signature, config, *launch, (arch,))
