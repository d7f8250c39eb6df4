"""One op at one shape: inputs, implementations, and the least work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

BF16_BYTES: Final = 2
"""Bytes an element, for the floors."""

Inputs = tuple[Any, ...]
"""Positional arguments: tensors, sequences of tensors, None, numbers. Gradients are taken with
respect to every tensor that requires one, sequences included."""

Function = Callable[..., Any]
"""From inputs to a tensor or a tuple of tensors."""

Peer = Callable[[], Function | None]
"""Imports another implementation; None where it is not installed."""


@dataclass(frozen=True)
class Work:
    """The least that any implementation must do.

    Attributes
    ----------
    bytes : int
        Read and written from and to device memory, each tensor once.
    flops : int
        Of matrix products, 2 for a multiply-add.
    exponentials : int
        And other special functions.
    """

    bytes: int
    flops: int = 0
    exponentials: int = 0


@dataclass(frozen=True)
class KernelCase:
    """One op at one shape.

    Attributes
    ----------
    op : str
        Name of the file.
    shape : str
        What the table says of it, such as ``triangle attention N=256``.
    inputs : (device, dtype) -> Inputs
        Made anew by each call.
    reference : Function
        Plain torch.
    ours : Function
    forward, backward : Work
        ``backward`` alone, without what ``forward`` already counts.
    setting : {"initial training", "fine-tuning", "general", "comparison", "odd sizes"}
        Where the shape comes up. ``comparison``: less than the model needs, since others do no
        more. ``odd sizes``: small ones that divide nothing, for checks and not for times.
    check_inputs : (device, dtype) -> Inputs, optional
        For the correctness check, where the reference in float64 does not fit at full size.
    peers : mapping of str to Peer
        Other implementations by name.
    """

    op: str
    shape: str
    inputs: Callable[[torch.device, torch.dtype], Inputs]
    reference: Function
    ours: Function
    forward: Work = Work(0)
    backward: Work = Work(0)
    setting: str = "general"
    check_inputs: Callable[[torch.device, torch.dtype], Inputs] | None = None
    peers: Mapping[str, Peer] = field(default_factory=dict)


def leaf(
    device: torch.device, dtype: torch.dtype, *shape: int, scale: float = 1.0, shift: float = 0.0
) -> Tensor:
    """Normally distributed numbers, of which a gradient is wanted."""
    return (shift + scale * torch.randn(shape, device=device)).to(dtype).requires_grad_()


def wider(dtype: torch.dtype) -> torch.dtype:
    """In which references sum: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)
