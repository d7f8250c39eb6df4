"""``scalefold::global_attention``: LayerNorm, global attention along columns, gate and residual.

Besides the arguments, some vectors a column are kept for backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.attention.pooled.arguments import Parameters, checked
from scalefold_kernels.attention.pooled.kernel.backward import (
    global_attention_query_kernel,
    global_attention_rows_kernel,
    global_attention_values_kernel,
)
from scalefold_kernels.attention.pooled.kernel.forward import global_attention_forward_kernel
from scalefold_kernels.dot import block, precision
from scalefold_kernels.norm.op import EPS
from scalefold_kernels.rows import channels_together
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tiles import architecture, tile


def global_attention(x_BSNC: Tensor, mask_BSN: Tensor, *parameters: Tensor) -> Tensor:
    """``x`` plus: normalise, attend from each column's mean query to its rows, gate, project.

    Suppl. Alg. 19; any strides, (B, S, N, C) -> (B, S, N, C), contiguous.

    Parameters
    ----------
    x_BSNC : Tensor
    mask_BSN : Tensor
        1 for rows of a column that take part. Where none does, all do, with a query of 0.
    *parameters : Tensor
        In the order of `Parameters`.
    """
    return _global_attention(x_BSNC, mask_BSN, list(parameters))[0]


@torch.library.custom_op("scalefold::global_attention", mutates_args=())
def _global_attention(x: Tensor, mask: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """The result; what backward needs of columns, see the forward kernel."""
    return forward(channels_together(x), mask, checked(x, mask, *parameters))


@_global_attention.register_fake
def _(x: Tensor, mask: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    return results(x, Parameters(*parameters))


@torch.library.custom_op("scalefold::global_attention_backward", mutates_args=())
def _global_attention_backward(
    grad: Tensor, x: Tensor, mask: Tensor, parameters: list[Tensor], columns: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of all parameters one after the other."""
    grad, x = channels_together(grad), channels_together(x)
    contiguous = Parameters(*(p.contiguous() for p in parameters))
    flat = _flat(contiguous)
    if not x.numel():
        return x.new_empty(x.shape), flat.zero_()
    backward = Backward(grad, x, mask, contiguous, columns)
    backward.values()
    backward.query()
    backward.rows()
    return backward.grad_x, sum_rows(backward.sums, x.dtype, flat)


@_global_attention_backward.register_fake
def _(
    grad: Tensor, x: Tensor, mask: Tensor, parameters: list[Tensor], columns: list[Tensor]
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), _flat(Parameters(*parameters))


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, mask, parameters = inputs
    _, *columns = output
    ctx.mark_non_differentiable(*columns)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, mask, *parameters, *columns)


def _gradients(
    ctx: Any, grads: list[Tensor | None]
) -> tuple[Tensor | None, None, list[Tensor | None]]:
    x, mask, *others = ctx.saved_tensors
    number = len(Parameters._fields)
    parameters, columns = others[:number], others[number:]
    if grads[0] is None:
        return None, None, [None] * number
    grad_x, flat = _global_attention_backward(grads[0], x, mask, parameters, columns)
    parts = flat.split([p.numel() for p in parameters])
    return grad_x, None, [g.view(p.shape) for g, p in zip(parts, parameters, strict=True)]


_global_attention.register_autograd(_gradients, setup_context=_save)


def results(x: Tensor, parameters: Parameters) -> list[Tensor]:
    """New memory for what the op returns."""
    batch, _, columns, channels = x.shape
    every, head = parameters.query_weight.shape[0], parameters.key_weight.shape[0]
    heads = every // head
    sizes = (channels,), (every,), (every,), (2, heads), (heads, channels), (heads, channels)
    kept = (x.new_empty((batch, columns, *size), dtype=torch.float32) for size in sizes)
    return [x.new_empty(x.shape), *kept]


def forward(x: Tensor, mask: Tensor, parameters: Parameters) -> list[Tensor]:
    """Launch the forward kernel."""
    out, *columns = results(x, parameters)
    if out.numel():
        launch = _Launch("forward", x, parameters)
        global_attention_forward_kernel[launch.grid](
            x, mask, *parameters, out, *columns, *_strides(x, mask, out), launch.num_rows,
            launch.scale, **launch.constants,
        )  # fmt: skip
    return [out, *columns]


class Backward:
    """Launches of the three kernels, in this order: `values`, `query`, `rows`.

    Attributes
    ----------
    grad_x : Tensor
    sums : Tensor, float32
        A row for each column: its part of all parameters' gradients one after the other.
    """

    def __init__(
        self,
        grad: Tensor,
        x: Tensor,
        mask: Tensor,
        parameters: Parameters,
        columns: list[Tensor],
    ) -> None:
        self._grad, self._x, self._mask, self._parameters = grad, x, mask, parameters
        self._mean, self._query, self._result, self._softmax, *self._of_heads = columns
        pooled = columns[-1]
        self._grad_pooled = torch.empty_like(pooled)
        self._grad_mean = torch.empty_like(self._mean)
        num_columns, num_parameters = x.shape[0] * x.shape[2], sum(p.numel() for p in parameters)
        self.grad_x = x.new_empty(x.shape)
        self.sums = pooled.new_empty(num_columns, num_parameters)

    def values(self) -> None:
        """Gradients of each head's mean row, and of the weights of values and output."""
        p, launch = self._parameters, _Launch("values", self._x, self._parameters)
        global_attention_values_kernel[launch.grid](
            self._grad, self._x, p.norm_weight, p.norm_bias, p.value_weight, p.gate_weight,
            p.gate_bias, p.out_weight, self._result, self._of_heads[1], self._grad_pooled,
            self.sums, *_strides(self._grad, self._x), launch.num_rows,
            BLOCK_A=block(p.value_weight.shape[0]), **launch.constants,
        )  # fmt: skip

    def query(self) -> None:
        """Gradients of the mean, and of the weights of queries and keys."""
        p, launch = self._parameters, _Launch("query", self._x, self._parameters)
        global_attention_query_kernel[launch.grid](
            self._x, self._mask, p.norm_weight, p.norm_bias, p.query_weight, p.key_weight,
            self._mean, self._query, self._softmax, *self._of_heads, self._grad_pooled,
            self._grad_mean, self.sums, *_strides(self._x, self._mask), launch.num_rows,
            launch.scale, BLOCK_A=block(p.key_weight.shape[0]), **launch.constants,
        )  # fmt: skip

    def rows(self) -> None:
        """Gradients of x, and of the weights of gate and norm."""
        p, launch = self._parameters, _Launch("rows", self._x, self._parameters)
        global_attention_rows_kernel[launch.grid](
            self._grad, self._x, self._mask, p.norm_weight, p.norm_bias, p.gate_weight,
            p.gate_bias, p.out_weight, self._result, self._softmax, *self._of_heads,
            self._grad_pooled, self._grad_mean, self.grad_x, self.sums,
            *_strides(self._grad, self._x, self._mask, self.grad_x), launch.num_rows,
            **launch.constants,
        )  # fmt: skip


class _Launch:
    """Grid, sizes and constants of a launch."""

    def __init__(self, kernel: str, x: Tensor, parameters: Parameters) -> None:
        batch, self.num_rows, columns, channels = x.shape
        every, head = parameters.query_weight.shape[0], parameters.key_weight.shape[0]
        dtype = str(x.dtype).removeprefix("torch.")
        shape: dict[str, int | str] = {"S": self.num_rows, "C": channels, "D": every}
        self.grid, self.scale = (columns, batch), head**-0.5
        self.constants = {
            "C": channels,
            "D": every,
            "A": head,
            "EPS": EPS,
            "PRECISION": precision(x.dtype),
            "BLOCK_C": block(channels),
            "BLOCK_D": block(every),
            "BLOCK_H": block(every // head),
            **tile(f"global_attention_{kernel}", architecture(x.device), shape | {"dtype": dtype}),
        }


def _flat(parameters: Parameters) -> Tensor:
    return parameters.out_bias.new_empty(sum(p.numel() for p in parameters))


def _strides(*tensors: Tensor) -> list[int]:
    """Of samples, rows and columns."""
    return [stride for x in tensors for stride in x.stride()[:3]]
