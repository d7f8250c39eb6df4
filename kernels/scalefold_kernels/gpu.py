"""What a GPU and the installed Triton can run, and what launches must know of a GPU."""

from __future__ import annotations

from functools import cache

import torch
import triton

GLUON_VERSIONS = ("3.6", "3.7", "3.8", "3.9")
"""Versions of Triton that the kernels for Hopper GPUs compile with; `compiler` has what differs."""

MIN_CAPABILITY = (8, 0)
"""Compute capability of the oldest NVIDIA GPUs with bfloat16 matrix products: A100, RTX 30."""

SM_REGISTERS = 64 * 1024
"""Registers of an SM."""


def why_not_hopper(device: torch.device) -> str | None:
    """Why kernels for Hopper GPUs do not run on a device, or None."""
    if not is_hopper(device):
        return f"needs a Hopper GPU (H100, H200), and the tensors are on {_named(device)}"
    if not has_gluon():
        wanted = ", ".join(GLUON_VERSIONS)
        return f"needs Gluon of Triton {wanted}, and this is Triton {triton.__version__}"
    return None


def why_not_triton(device: torch.device) -> str | None:
    """Why Triton kernels do not run on a device, or None; Triton's interpreter runs on the CPU."""
    if device.type == "cpu":
        return None if triton.knobs.runtime.interpret else "needs a GPU, and the tensors are on cpu"
    if device.type != "cuda":
        return f"needs an NVIDIA or AMD GPU, and the tensors are on {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < MIN_CAPABILITY:
        (wanted, least), (major, minor) = MIN_CAPABILITY, capability
        return (
            f"needs compute capability {wanted}.{least} or newer (A100, RTX 30), and "
            f"{_named(device)} has {major}.{minor}"
        )
    return None


def is_hopper(device: torch.device) -> bool:
    """Whether a device is an H100, an H200 or another GPU of their kind."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] == 9


def has_gluon() -> bool:
    """Whether Triton is of a version that the kernels for Hopper GPUs run with."""
    return ".".join(triton.__version__.split(".")[:2]) in GLUON_VERSIONS


def _named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def num_sms(device: torch.device) -> int:
    """SMs of the GPU; on the CPU two, so that the interpreter sees work divided."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
