"""What `op` hands to the backends of triangle multiplication, by name.

Legend: B samples; I, J, K residues; P = B I J positions; Z pair channels; C hidden channels. All
tensors are contiguous, operands of `Product` aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.checks import check_rows, check_shapes, check_types
from scalefold_kernels.dot import block, precision
from scalefold_kernels.dropout.mask import Dropout
from scalefold_kernels.tiles import Config, architecture, dtype_name, find_config


@dataclass(frozen=True)
class Sizes:
    """Sizes by which configurations are chosen: positions P, pair channels Z, hidden channels C."""

    positions: int
    pair: int
    hidden: int
    dtype: torch.dtype
    arch: str

    @classmethod
    def of(cls, x: Tensor, pair: int, hidden: int) -> Sizes:
        """Take positions, type and GPU from a tensor (B, I, J, ...)."""
        return cls(x.shape[:3].numel(), pair, hidden, x.dtype, architecture(x.device))

    def config(self, name: str, **limits: int) -> Config:
        """Configuration of a kernel; no block larger than its entry in ``limits`` needs."""
        sizes = {"P": self.positions, "Z": self.pair, "C": self.hidden}
        dtype = dtype_name(self.dtype)
        found = find_config(f"triangle_{name}", self.arch, {**sizes, "dtype": dtype})
        return found | {name: min(found[name], block(size)) for name, size in limits.items()}

    def constants(self) -> dict[str, int | str]:
        """Compile-time constants that the kernels of the two parts share."""
        return {"Z": self.pair, "C": self.hidden, "PRECISION": precision(self.dtype)}


class ProjectionWeights(NamedTuple):
    """Parameters of the projection, in the operation's order: (Z,), (C, Z) and (C,), (Z, Z)."""

    norm_weight: Tensor
    norm_bias: Tensor
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
        """Weights of the five projections."""
        return [self.a, self.a_gate, self.b, self.b_gate, self.gate]


class Projected(NamedTuple):
    """Operands (C, B, I, J), gate (B, I, J, Z), and the statistics (B, I, J) of z's positions."""

    a: Tensor
    b: Tensor
    gate: Tensor
    mean: Tensor
    rstd: Tensor

    @classmethod
    def empty(cls, z: Tensor, hidden: int) -> Projected:
        """New memory."""
        a, b = (z.new_empty(hidden, *z.shape[:-1]) for _ in range(2))
        return cls(a, b, z.new_empty(z.shape), *new_stats(z[..., 0]))


class ProjectionGradients(NamedTuple):
    """Gradients of operands and gate; ``through``, z's from elsewhere, is added to z's here."""

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
    rstd: Tensor


class OutputWeights(NamedTuple):
    """Parameters of the output, in the operation's order: (C,), (C,), (Z, C), (Z,)."""

    norm_weight: Tensor
    norm_bias: Tensor
    matrix: Tensor
    bias: Tensor


class OutputArguments(NamedTuple):
    """Product (C, B, I, J), gate (B, I, J, Z), parameters, and what is dropped of the update."""

    product: Tensor
    gate: Tensor
    weights: OutputWeights
    dropout: Dropout | None


class Product(NamedTuple):
    """Factors x (C, B, rows, inner) and y (C, B, inner, columns), each plain or transposed."""

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Product:
        """Copy a factor that is neither.

        Raises ValueError where they have not the same C, B and inner dimension.
        """
        if x.shape[:2] != y.shape[:2] or x.shape[3] != y.shape[2]:
            raise ValueError(
                f"triangle multiplication: no products of matrices {tuple(x.shape)} and "
                f"{tuple(y.shape)}; channels, samples and inner dimension must be the same"
            )
        x, y = (t if t.mT.is_contiguous() else t.contiguous() for t in (x, y))
        return cls(x, y)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns, inner dimension."""
        return self.x.shape[2], self.y.shape[3], self.x.shape[3]


def new_stats(like: Tensor) -> tuple[Tensor, Tensor]:
    """New memory for mean and 1 / standard deviation."""
    mean = torch.empty(like.shape, dtype=torch.float32, device=like.device)
    return mean, torch.empty_like(mean)


def check_projection(z: Tensor, mask: Tensor, parameters: Sequence[Tensor]) -> None:
    """Raise ValueError where the projection's arguments do not fit each other, or the kernels."""
    check_rows(z)
    pair, hidden = z.shape[-1], parameters[2].shape[0]
    matrices = [(hidden, pair), (hidden,)] * 4 + [(pair, pair), (pair,)]
    shapes = (pair,), (pair,), *matrices
    check_types("triangle multiplication", (z, *parameters))
    named = zip(ProjectionWeights._fields, parameters, shapes, strict=True)
    check_shapes(_of(z), [("mask", mask, z.shape[:-1]), *named])


def check_output(z: Tensor, product: Tensor, gate: Tensor, parameters: Sequence[Tensor]) -> None:
    """Raise ValueError where the output's arguments do not fit each other, or the kernels."""
    check_rows(z)
    pair, hidden = z.shape[-1], product.shape[0]
    shapes = (hidden,), (hidden,), (pair, hidden), (pair,)
    check_types("triangle multiplication", (product, *parameters))
    named = zip(OutputWeights._fields, parameters, shapes, strict=True)
    channels_first = ("product (channels first)", product, (hidden, *z.shape[:-1]))
    check_shapes(_of(z), [channels_first, ("gate", gate, z.shape), *named])


def _of(z: Tensor) -> str:
    return f"triangle multiplication of z {tuple(z.shape)}"
