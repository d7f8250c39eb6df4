"""What of a GPU decides which kernels run on it, and how many programs of them."""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor


def runs_gluon(x: Tensor) -> bool:
    """Whether kernels for Hopper GPUs can run where this tensor is.

    Gluon, in which they are written, changes from version to version of Triton.
    """
    return (
        x.is_cuda
        and torch.cuda.get_device_capability(x.device)[0] == 9
        and triton.__version__.startswith("3.6.")
    )


@cache
def multiprocessors(device: torch.device) -> int:
    """How many the GPU has; on the CPU two, so that the interpreter sees work divided."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
