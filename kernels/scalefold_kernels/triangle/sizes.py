"""Triangle multiplication: what the launches of all its kernels share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.dot import block, precision
from scalefold_kernels.dropout.arguments import Dropout
from scalefold_kernels.tiles import Tile, architecture, tile

EPS = 1e-5
"""Added to the variance, as in `scalefold.ops.norm`."""


@dataclass(frozen=True)
class Sizes:
    """What tiles are chosen by: positions P, pair channels Z, hidden channels C."""

    positions: int
    pair: int
    hidden: int
    dtype: torch.dtype
    arch: str

    @classmethod
    def of(cls, x: Tensor, positions: int, pair: int, hidden: int) -> Sizes:
        """With the type and the GPU of a tensor."""
        return cls(positions, pair, hidden, x.dtype, architecture(x.device))

    def tile(self, name: str, **limits: int) -> Tile:
        """Tile of a kernel; no block of it larger than its entry in ``limits`` needs."""
        shape: dict[str, int | str] = {"P": self.positions, "Z": self.pair, "C": self.hidden}
        shape["dtype"] = str(self.dtype).removeprefix("torch.")
        found = tile(f"triangle_{name}", self.arch, shape)
        return found | {name: min(found[name], block(size)) for name, size in limits.items()}

    def constants(self) -> dict[str, int | str]:
        """Compile-time constants that the kernels of the two parts share."""
        return {"Z": self.pair, "C": self.hidden, "PRECISION": precision(self.dtype)}


class DroppedOut(NamedTuple):
    """Which elements of an update are kept, as the portable kernels want it.

    Attributes
    ----------
    keep : Tensor or None
        From `launch.dropout_mask`.
    sample, row, column : int
        Its strides; 0 where one mask is shared.
    factor : float
        What is kept is multiplied with it.
    """

    keep: Tensor | None
    sample: int
    row: int
    column: int
    factor: float

    @classmethod
    def of(cls, keep: Tensor, dropout: Dropout | None) -> DroppedOut:
        """With the strides of a mask, which is of size 1 where it is shared."""
        if dropout is None:
            return cls(None, 0, 0, 0, 1.0)
        steps = (s if n > 1 else 0 for n, s in zip(keep.shape, keep.stride(), strict=True))
        sample, row, column, _ = steps
        return cls(keep, sample, row, column, dropout.factor)
