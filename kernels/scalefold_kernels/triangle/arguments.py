"""Triangle multiplication: what the launches hand to the kernels, by name.

Legend: B samples, I and J residues, Z pair channels, C hidden channels. All tensors are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.dropout.arguments import Dropout
from scalefold_kernels.limits import check_rows

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class ProjectionWeights(NamedTuple):
    """Parameters of the projection, in the operation's order: (Z,), (C, Z) and (C,), (Z, Z)."""

    scale: Tensor
    shift: Tensor
    a: Tensor
    a_bias: Tensor
    a_gate: Tensor
    a_gate_bias: Tensor
    b: Tensor
    b_bias: Tensor
    b_gate: Tensor
    b_gate_bias: Tensor
    gate: Tensor
    gate_bias: Tensor

    @property
    def matrices(self) -> list[Tensor]:
        """Of the five projections."""
        return [self.a, self.a_gate, self.b, self.b_gate, self.gate]


class Projected(NamedTuple):
    """Operands (C, B, I, J), gate (B, I, J, Z), and the statistics (B, I, J) of z's positions."""

    a: Tensor
    b: Tensor
    gate: Tensor
    mean: Tensor
    reciprocal: Tensor

    @classmethod
    def empty(cls, z: Tensor, hidden: int) -> Projected:
        """New memory."""
        a = z.new_empty(hidden, *z.shape[:-1])
        return cls(a, torch.empty_like(a), torch.empty_like(z), *new_statistics(z[..., 0]))


class ProjectionGradients(NamedTuple):
    """Of operands and gate; ``through`` is that of z elsewhere, to be added to z's."""

    a: Tensor
    b: Tensor
    gate: Tensor
    through: Tensor | None


class ProjectionKept(NamedTuple):
    """What the projection's backward needs of its forward."""

    z: Tensor
    mask: Tensor
    a: Tensor
    b: Tensor
    mean: Tensor
    reciprocal: Tensor


class OutputWeights(NamedTuple):
    """Parameters of the output, in the operation's order: (C,), (C,), (Z, C), (Z,)."""

    scale: Tensor
    shift: Tensor
    matrix: Tensor
    bias: Tensor


class OutputArguments(NamedTuple):
    """Product (C, B, I, J), gate (B, I, J, Z), parameters, and what is dropped of the update.

    ``keep`` is `launch.dropout_mask`'s, for the kernels that read one.
    """

    product: Tensor
    gate: Tensor
    weights: OutputWeights
    keep: Tensor
    dropout: Dropout | None


def new_statistics(like: Tensor) -> tuple[Tensor, Tensor]:
    """New memory for mean and reciprocal deviation."""
    mean = torch.empty(like.shape, dtype=torch.float32, device=like.device)
    return mean, torch.empty_like(mean)


def check_projection(z: Tensor, mask: Tensor, parameters: Sequence[Tensor]) -> None:
    """Raise ValueError where the projection's arguments do not fit each other, or the kernels."""
    check_rows(z)
    weights = ProjectionWeights(*parameters)
    pair, hidden = z.shape[-1], weights.a.shape[0]
    matrices = [(hidden, pair), (hidden,)] * 4 + [(pair, pair), (pair,)]
    shapes = (pair,), (pair,), *matrices
    _check_types(z, parameters)
    named = zip(ProjectionWeights._fields, weights, shapes, strict=True)
    _check_shapes(z, [("mask", mask, z.shape[:-1]), *named])


def check_output(z: Tensor, product: Tensor, gate: Tensor, parameters: Sequence[Tensor]) -> None:
    """Raise ValueError where the output's arguments do not fit each other, or the kernels."""
    check_rows(z)
    pair, hidden = z.shape[-1], product.shape[0]
    shapes = (hidden,), (hidden,), (pair, hidden), (pair,)
    _check_types(product, parameters)
    named = zip(OutputWeights._fields, OutputWeights(*parameters), shapes, strict=True)
    operands = (
        ("product (channels first)", product, (hidden, *z.shape[:-1])),
        ("gate", gate, z.shape),
    )
    _check_shapes(z, [*operands, *named])


def _check_types(x: Tensor, parameters: Sequence[Tensor]) -> None:
    if x.dtype not in DTYPES:
        raise ValueError(f"triangle multiplication of {x.dtype}; the kernels take {DTYPES}")
    wrong = {p.dtype for p in parameters} - {x.dtype}
    if wrong:
        raise ValueError(f"triangle multiplication of {x.dtype} with parameters of {wrong}")


def _check_shapes(z: Tensor, named: Iterable[tuple[str, Tensor, Sequence[int]]]) -> None:
    for name, tensor, shape in named:
        if tensor.shape != tuple(shape):
            raise ValueError(
                f"triangle multiplication of z {tuple(z.shape)}: {name} has shape "
                f"{tuple(tensor.shape)}, must be {tuple(shape)}"
            )
