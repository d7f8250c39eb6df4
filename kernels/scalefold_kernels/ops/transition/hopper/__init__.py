"""The transition on Hopper GPUs (H100, H200), in Gluon."""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold_kernels.ops.transition.hopper.forward import forward
from scalefold_kernels.ops.transition.hopper.gradients import gradients
from scalefold_kernels.ops.transition.hopper.input import input_gradient
from scalefold_kernels.ops.transition.hopper.parameters import finish
from scalefold_kernels.ops.transition.op import Kept, Parameters
from scalefold_kernels.tma import VECTOR, why_unreachable, within_reach

__all__ = ["backward", "forward", "why_not"]


def why_not(function: str, x_RC: Tensor, parameters: Parameters) -> str | None:
    num_hidden, channels = parameters.up_weight.shape
    if x_RC.dtype != torch.bfloat16:
        return f"takes bfloat16, not {x_RC.dtype}"
    if len(x_RC) == 0:
        return "takes no empty tensors"
    if channels % VECTOR or num_hidden % VECTOR:
        return f"takes channels in multiples of {VECTOR}, found {channels} and {num_hidden} hidden"
    return why_unreachable(x_RC, parameters.up_weight, parameters.down_weight)


def backward(grad_RC: Tensor, x_RC: Tensor, kept: Kept, parameters: Parameters) -> list[Tensor]:
    grad_RC = within_reach(grad_RC)
    grad_hidden, products, sums = gradients(kept.normed, grad_RC, parameters)
    grad_x, sums_over_rows = input_gradient(grad_hidden, x_RC, kept.stats, grad_RC, parameters)
    return [grad_x, *finish(products, sums, sums_over_rows, parameters)]
