"""``scalefold::transition``: LayerNorm, linear, ReLU, linear and residual in one kernel.

Forward never writes the hidden channels. Backward does, for some rows at a time: they and their
gradient come out of one kernel, and three large matrix products and a LayerNorm's backward follow.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from scalefold_kernels.norm.op import EPS
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import architecture, tile
from scalefold_kernels.transition.kernel import (
    transition_forward_kernel,
    transition_hidden_kernel,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

MAX_CHANNELS = 256
"""A program of the forward kernel holds whole rows, and their result in float32."""

MAX_HIDDEN_ELEMENTS = 1 << 27
"""Of the hidden channels in memory at a time: 256 MiB in bfloat16, and as much for the gradient."""


@torch.library.custom_op("scalefold::transition", mutates_args=())
def transition(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
) -> Tensor:
    """``x`` plus: normalise, widen, ReLU, narrow; (..., C) -> (..., C), contiguous.

    Parameters
    ----------
    x : Tensor, shape (..., C)
    norm_weight, norm_bias, down_bias : Tensor, shape (C,)
    up_weight : Tensor, shape (H, C)
    up_bias : Tensor, shape (H,)
    down_weight : Tensor, shape (C, H)
    """
    parameters = norm_weight, norm_bias, up_weight, up_bias, down_weight, down_bias
    _check(x, *parameters)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = _rows(x)
    num_rows, channels = rows.shape
    if num_rows == 0:
        return out
    sizes = tile("transition_forward", architecture(x.device), _shape(rows, up_weight))
    transition_forward_kernel[(triton.cdiv(num_rows, sizes["BLOCK_R"]),)](
        rows,
        *(p.contiguous() for p in parameters),
        out,
        num_rows,
        rows.stride(0),
        C=channels,
        H=up_weight.shape[0],
        EPS=EPS,
        PRECISION=_precision(x),
        BLOCK_C=max(16, triton.next_power_of_2(channels)),
        **sizes,
    )
    return out


@transition.register_fake
def _(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("scalefold::transition_backward", mutates_args=())
def transition_backward(
    grad: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x; of the norm's weight and bias as (2, C); of the four others in order."""
    rows, grad_rows = _rows(x), _rows(grad)
    num_rows, num_hidden = rows.shape[0], up_weight.shape[0]
    up, down = up_weight.contiguous(), down_weight.contiguous()
    normed, stats = torch.ops.scalefold.layer_norm(rows, norm_weight, norm_bias)
    grad_normed = torch.empty_like(normed)
    sums: list[tuple[Tensor, ...]] = []
    at_once = max(1, MAX_HIDDEN_ELEMENTS // num_hidden)
    for start in range(0, max(num_rows, 1), at_once):
        chunk = slice(start, start + at_once)
        hidden, grad_hidden, grad_up_bias, grad_down_bias = _hidden(
            normed[chunk], grad_rows[chunk], up, up_bias, down
        )
        torch.mm(grad_hidden, up, out=grad_normed[chunk])
        grad_up = torch.mm(grad_hidden.t(), normed[chunk])
        grad_down = torch.mm(grad_rows[chunk].t(), hidden)
        sums.append((grad_up, grad_up_bias, grad_down, grad_down_bias))
    grad_x, grad_norm = torch.ops.scalefold.layer_norm_backward(
        grad_normed, rows, norm_weight, stats
    )
    grads = [_total(parts).to(x.dtype) for parts in zip(*sums, strict=True)]
    return grad_x.add_(grad_rows).view(x.shape), grad_norm, *grads


@transition_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    channels = x.shape[-1]
    return (
        x.new_empty(x.shape),
        norm_weight.new_empty(2, channels),
        up_weight.new_empty(up_weight.shape),
        up_bias.new_empty(up_bias.shape),
        down_weight.new_empty(down_weight.shape),
        x.new_empty(channels),
    )


def _hidden(
    normed: Tensor, grad: Tensor, up: Tensor, up_bias: Tensor, down: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden channels of some rows, their gradient, and both biases' gradients in float32."""
    num_rows, channels = normed.shape
    num_hidden = up.shape[0]
    sizes = tile("transition_hidden", architecture(normed.device), _shape(normed, up))
    hidden = normed.new_empty(num_rows, num_hidden)
    grad_hidden = torch.empty_like(hidden)
    blocks = triton.cdiv(num_rows, sizes["BLOCK_R"])
    up_bias_sums = torch.empty(blocks, num_hidden, dtype=torch.float32, device=normed.device)
    down_bias_sums = torch.empty(blocks, channels, dtype=torch.float32, device=normed.device)
    transition_hidden_kernel[(triton.cdiv(num_hidden, sizes["BLOCK_H"]), blocks)](
        normed,
        up,
        up_bias.contiguous(),
        grad,
        down,
        hidden,
        grad_hidden,
        up_bias_sums,
        down_bias_sums,
        num_rows,
        grad.stride(0),
        C=channels,
        H=num_hidden,
        PRECISION=_precision(normed),
        **sizes,
    )
    grad_up_bias = sum_rows(up_bias_sums, torch.float32)
    return hidden, grad_hidden, grad_up_bias, sum_rows(down_bias_sums, torch.float32)


def _total(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack([p.float() for p in parts]).sum(0)


def _rows(x: Tensor) -> Tensor:
    """``x`` as a matrix with contiguous rows; a copy only where its strides allow no view."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _shape(rows: Tensor, up_weight: Tensor) -> dict[str, int | str]:
    num_rows, channels = rows.shape
    dtype = str(rows.dtype).removeprefix("torch.")
    return {"rows": num_rows, "C": channels, "H": up_weight.shape[0], "dtype": dtype}


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _check(x: Tensor, *parameters: Tensor) -> None:
    channels, num_hidden = x.shape[-1], parameters[2].shape[0]
    wanted = {
        "norm_weight": (channels,),
        "norm_bias": (channels,),
        "up_weight": (num_hidden, channels),
        "up_bias": (num_hidden,),
        "down_weight": (channels, num_hidden),
        "down_bias": (channels,),
    }
    for (name, shape), parameter in zip(wanted.items(), parameters, strict=True):
        if parameter.shape != shape:
            raise ValueError(
                f"transition of x {tuple(x.shape)}: {name} has shape {tuple(parameter.shape)}, "
                f"must be {shape}"
            )
    if channels > MAX_CHANNELS:
        raise ValueError(f"transition of {channels} channels; the kernel takes {MAX_CHANNELS}")
    dtypes = {t.dtype for t in (x, *parameters)}
    if len(dtypes) > 1 or x.dtype not in DTYPES:
        raise ValueError(
            "transition takes float32, bfloat16 or float16, the same for x and all parameters; "
            f"found {sorted(map(str, dtypes))}"
        )


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:-1])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    grad_x, grad_norm, *others = transition_backward(grad, *ctx.saved_tensors)
    return grad_x, grad_norm[0], grad_norm[1], *others


transition.register_autograd(_backward, setup_context=_save)
