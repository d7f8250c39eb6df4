"""What one file an op tells the benchmark: inputs, implementations, and the least work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

BF16_BYTES: Final = 2
"""Bytes an element, for the floors."""
FP32_BYTES: Final = 4
"""Likewise, of ops that are in float32 whatever type is asked for."""

Inputs = tuple[Any, ...]
"""Positional arguments: tensors, sequences of tensors, None, numbers. Gradients are taken with
respect to every tensor that requires one, sequences included."""

Function = Callable[..., Any]
"""From inputs to a tensor or a tuple of tensors."""


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
        And other special functions (16 a clock and SM).
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
        The torch reference of `scalefold.ops`.
    ours : Function
    forward, backward : Work
        ``backward`` alone, without what ``forward`` already counts.
    peers : mapping of str to () -> Function or None
        Other implementations by name. The call imports; None where it cannot be imported or does
        not serve this shape.
    check_inputs : (device, dtype) -> Inputs, optional
        For the correctness test, where the reference in float64 does not fit at full size.
    setting : str
        ``initial training``, ``fine-tuning``, ``general``; or ``comparison``, of less than the
        model needs, since others do no more.
    as_written : Function, optional
        In plain torch, the precision asked for throughout: what errors are compared with where the
        reference works in a higher one.
    """

    op: str
    shape: str
    inputs: Callable[[torch.device, torch.dtype], Inputs]
    reference: Function
    ours: Function
    forward: Work
    backward: Work
    peers: Mapping[str, Callable[[], Function | None]] = field(default_factory=dict)
    check_inputs: Callable[[torch.device, torch.dtype], Inputs] | None = None
    setting: str = "initial training"
    as_written: Function | None = None


def leaf(
    device: torch.device, dtype: torch.dtype, *shape: int, scale: float = 1.0, shift: float = 0.0
) -> Tensor:
    """Normally distributed numbers, of which a gradient is wanted."""
    return (shift + scale * torch.randn(shape, device=device)).to(dtype).requires_grad_()
