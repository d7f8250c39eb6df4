"""The kernels for Hopper GPUs (H100, H200), and what they serve."""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold_kernels.ops.transition.arguments import Parameters
from scalefold_kernels.ops.transition.hopper_backward import backward
from scalefold_kernels.ops.transition.hopper_forward import forward
from scalefold_kernels.tma import VECTOR, reachable

__all__ = ["backward", "forward", "serves"]


def serves(x_RC: Tensor, parameters: Parameters) -> bool:
    """Whether these kernels, on a Hopper GPU, can take the arguments."""
    matrices = x_RC, parameters.up_weight, parameters.down_weight
    return (
        x_RC.dtype == torch.bfloat16
        and x_RC.shape[0] > 0
        and all(size % VECTOR == 0 for size in parameters.up_weight.shape)
        and all(map(reachable, matrices))
    )
