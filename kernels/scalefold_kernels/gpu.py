"""What of a GPU decides which kernels run on it."""

from __future__ import annotations

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
