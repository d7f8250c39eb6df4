"""What of a GPU decides which kernels run on it, and how many programs of them."""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor

GLUON_VERSIONS = ("3.6", "3.7")
"""Of Triton, with which the kernels for Hopper GPUs were seen to be right: their language, Gluon,
changes from one to the next."""


def runs_gluon(x: Tensor) -> bool:
    """Whether kernels for Hopper GPUs can run where this tensor is."""
    return is_hopper(x.device) and has_gluon()


def is_hopper(device: torch.device) -> bool:
    """Whether a device is an H100, an H200 or another GPU of their kind."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def has_gluon() -> bool:
    """Whether Triton is of a version that the kernels for Hopper GPUs run with."""
    return ".".join(triton.__version__.split(".")[:2]) in GLUON_VERSIONS


@cache
def num_sms(device: torch.device) -> int:
    """How many the GPU has; on the CPU two, so that the interpreter sees work divided."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
