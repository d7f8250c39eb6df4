"""One op at one shape: its inputs, and what computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Inputs = tuple[Any, ...]
"""Positional arguments: tensors, sequences of tensors, None, numbers. Gradients are taken with
respect to every tensor that requires one, sequences included."""

MakeInputs = Callable[[torch.device, torch.dtype], Inputs]
"""New ones at each call."""

Function = Callable[..., Any]
"""From inputs to a tensor or a tuple of tensors."""


@dataclass(frozen=True)
class KernelCase:
    """One op at one shape.

    Attributes
    ----------
    op : str
        Name of the module in `cases`.
    shape : str
        What the table says of it, such as ``triangle attention N=256``.
    inputs : MakeInputs
    reference : Function
        Plain torch.
    ours : Function
    setting : {"initial training", "fine-tuning", "general", "odd sizes"}
        Where the shape comes up. ``odd sizes``: small ones that divide nothing, for checks and not
        for times.
    check_inputs : MakeInputs, optional
        For the correctness check, where the reference in float64 does not fit at full size.
    peers : mapping of str to Function
        Other implementations by name; they raise ``ImportError`` where they are not installed.
    """

    op: str
    shape: str
    inputs: MakeInputs
    reference: Function
    ours: Function
    setting: str = "general"
    check_inputs: MakeInputs | None = None
    peers: Mapping[str, Function] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Within its op."""
        return f"{self.setting}, {self.shape}"


class Draw:
    """Draws normally distributed tensors, of which a gradient is wanted."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def __call__(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        x = shift + scale * torch.randn(shape, device=self.device)
        return x.to(self.dtype).requires_grad_()

    def representation(self, *shape: int) -> Tensor:
        """What a LayerNorm changes: not around 0, not of variance 1."""
        return self(*shape, scale=2.0, shift=0.5)

    def norm(self, channels: int) -> tuple[Tensor, Tensor]:
        """Weight and bias of a LayerNorm."""
        return self(channels, scale=0.1, shift=1.0), self(channels, scale=0.1)

    def weight(self, outputs: int, inputs: int) -> Tensor:
        """Of a linear map, such that outputs are as large as inputs."""
        return self(outputs, inputs, scale=inputs**-0.5)

    def linear(self, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        """Weight and bias of a linear map."""
        return self.weight(outputs, inputs), self(outputs, scale=0.1)


def plain_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm by torch."""
    return functional.layer_norm(x, weight.shape, weight, bias)


def wider(dtype: torch.dtype) -> torch.dtype:
    """In which references sum: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)
