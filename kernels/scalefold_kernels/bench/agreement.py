"""Is an implementation right? Its error against float64, beside that of plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.bench.case import Args, Draw, Function, KernelCase

FACTOR = 2.0
"""An implementation's error may be this many times that of plain torch in the same precision."""

ROUNDINGS = 8
"""Of float32, each 2^-24 at most, that any result may be off by: sums of 256 terms, each off by
half of one at random, are off by as many."""


@dataclass(frozen=True)
class Agreement:
    """Errors of one tensor, as `error` gives them; gradients are in the order of the inputs.

    ``limit`` is ``FACTOR`` times the largest of torch's error, that of rounding the exact result
    once to the type of torch's, and ``ROUNDINGS`` roundings to float32.
    """

    tensor: str
    error: float
    torch_error: float
    limit: float

    @property
    def good(self) -> bool:
        """Whether the error is within the limit (NaN is not)."""
        return self.error <= self.limit

    def __str__(self) -> str:
        return (
            f"{'right' if self.good else 'WRONG'}: {self.tensor} has error {self.error:.1e} "
            f"against float64, limit {self.limit:.1e} (torch has {self.torch_error:.1e})"
        )


class Exact:
    """The float64 result of a case's reference, and the errors of plain torch in ``dtype``.

    Both get the same rounded inputs.
    """

    def __init__(self, case: KernelCase, device: torch.device, dtype: torch.dtype) -> None:
        torch.manual_seed(0)  # whatever ran before
        self._inputs = (case.check_inputs or case.inputs)(Draw(device, dtype))
        doubles = convert(self._inputs, torch.float64)
        with torch.no_grad():
            shapes = [out.shape for out in tensors(case.reference(*doubles))]
        generator = torch.Generator(device).manual_seed(1)
        self._grads = [
            torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes
        ]
        self._exact = evaluate(case.reference, doubles, self._grads)
        values = evaluate(case.reference, self._inputs, self._grads)
        pairs = list(zip(values, self._exact, strict=True))
        self._torch = [error(value, exact) for value, exact in pairs]
        rounding = [error(exact.to(value.dtype), exact) for value, exact in pairs]
        least = ROUNDINGS * 2.0**-24
        self._limits = [FACTOR * max(*both, least) for both in zip(self._torch, rounding)]

    def agreement(self, function: Function) -> Agreement:
        """Compare a function with the exact result; the tensor that is nearest to its limit."""
        values = evaluate(function, self._inputs, self._grads)
        errors = [error(value, exact) for value, exact in zip(values, self._exact, strict=True)]
        outputs = [f"output {i}" for i in range(len(self._grads))]
        names = outputs + [f"gradient {i}" for i in range(len(values) - len(outputs))]
        found = map(Agreement, names, errors, self._torch, self._limits)
        # NaN sorts nowhere: a bad one comes first in any case.
        return max(found, key=lambda a: (not a.good, a.error / a.limit))


def evaluate(function: Function, inputs: Args, grads: Sequence[Tensor]) -> list[Tensor]:
    """Outputs of a function, and gradients of all inputs that require one, detached."""
    outputs = list(tensors(function(*inputs)))
    leaves = [t for t in tensors(inputs) if t.requires_grad]
    grads = [g.to(out.dtype) for g, out in zip(grads, outputs, strict=True)]
    found = torch.autograd.grad(outputs, leaves, grads) if leaves else ()
    return [t.detach() for t in (*outputs, *found)]


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a value of nested sequences, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def convert(value: Any, dtype: torch.dtype) -> Any:
    """The same nested value with new floating-point leaves of another type."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return value
        return value.detach().to(dtype).requires_grad_(value.requires_grad)
    if isinstance(value, list | tuple):
        return type(value)(convert(item, dtype) for item in value)
    return value


def error(value: Tensor, exact: Tensor) -> float:
    """``|value - exact| / |exact|``, Euclidean norms; ``|value|`` if the exact result is zero."""
    difference = torch.linalg.vector_norm(value.double() - exact).item()
    size = torch.linalg.vector_norm(exact).item()
    return difference / size if size else difference
