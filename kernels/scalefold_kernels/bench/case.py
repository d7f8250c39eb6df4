"""One op at one shape: its inputs, and what computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

INITIAL, FINE, GENERAL, ODD = "initial training", "fine-tuning", "general", "odd sizes"
"""Where a shape comes up. Odd ones are small and divide nothing: for checks and not for times."""

Args = tuple[Any, ...]
"""Positional arguments: tensors, sequences of tensors, None, numbers. Gradients are taken with
respect to every tensor that requires one, sequences included."""

Function = Callable[..., Any]
"""From inputs to a tensor or a tuple of tensors."""


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


@dataclass(frozen=True)
class KernelCase:
    """One op at one shape.

    ``inputs`` makes new ones at each call; ``check_inputs``, if given, those of the correctness
    check. ``reference`` is plain torch. ``peers`` are other implementations by name; they raise
    ``ImportError`` where they are not installed.
    """

    op: str
    shape: str
    inputs: Callable[[Draw], Args]
    reference: Function
    ours: Function
    setting: str = GENERAL
    check_inputs: Callable[[Draw], Args] | None = None
    peers: Mapping[str, Function] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Within its op."""
        return f"{self.setting}, {self.shape}"


@dataclass(frozen=True)
class Op:
    """What the cases of an op have in common.

    ``name`` is its kernels' folder. ``inputs`` takes a `Draw`, then sizes and options. For the
    correctness check the first sizes are at most ``checked``: in float64 the reference of larger
    ones does not fit into memory.
    """

    name: str
    ours: Function
    reference: Function
    inputs: Callable[..., Args]
    checked: tuple[int, ...] = ()

    def at(
        self,
        setting: str,
        shape: str,
        *sizes: Any,
        peers: Mapping[str, Function] | None = None,
        **options: Any,
    ) -> KernelCase:
        """The case of a shape."""
        fewer = *map(min, sizes, self.checked), *sizes[len(self.checked) :]
        return KernelCase(
            self.name,
            shape,
            lambda draw: self.inputs(draw, *sizes, **options),
            self.reference,
            self.ours,
            setting,
            lambda draw: self.inputs(draw, *fewer, **options),
            peers or {},
        )


def chosen(
    cases: Sequence[KernelCase], ops: Sequence[str], texts: Sequence[str], *, odd: bool
) -> list[KernelCase]:
    """Those of some ops, or of all, whose setting or shape holds one of the texts.

    Without texts: all, those of odd sizes only if ``odd``.

    Raises LookupError where there is no such op or shape.
    """
    known = sorted({case.op for case in cases})
    for op in ops:
        if op not in known:
            near = "".join(f"; did you mean {n}?" for n in get_close_matches(op, known, n=1))
            raise LookupError(f"no benchmark of {op}{near or '.'} There are {', '.join(known)}")
    found = [case for case in cases if case.op in (ops or known)]
    kept = [
        case
        for case in found
        if (any(text in case.name for text in texts) if texts else odd or case.setting != ODD)
    ]
    if not kept:
        wanted, names = " or ".join(map(repr, texts)), sorted({case.name for case in found})
        raise LookupError(f"no shape contains {wanted}; there are: {'; '.join(names)}")
    return kept
