"""The residual linear map by the library's matrix products: for sizes that no kernel here takes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels.ops.linear.op import Call
from scalefold_kernels.sums import column_sums


def forward(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, call: Call) -> Tensor:
    added = functional.linear(h, weight, bias)
    if call.dropout is not None:
        added = call.dropout.applied(added)
    return added.add_(x)


def backward(
    grad: Tensor, h: Tensor, weight: Tensor, call: Call, grad_h: Tensor, flat_grad: Tensor
) -> None:
    channels, inputs = weight.shape
    grad = grad if call.dropout is None else call.dropout.applied(grad)
    grad, end = grad.view(-1, channels), weight.numel()
    torch.mm(grad, weight, out=grad_h.view(-1, inputs))
    torch.mm(grad.t(), h.view(-1, inputs), out=flat_grad[:end].view_as(weight))
    column_sums(grad, flat_grad[end:])
