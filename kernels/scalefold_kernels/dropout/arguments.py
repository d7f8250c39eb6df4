"""Dropout as the launches of all kernels know it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.dropout.kernel import UNIFORM_MASK


class Dropout(NamedTuple):
    """What `scalefold.ops.dropout.Dropout` holds, in its order."""

    key: Tensor
    layer: int
    rate: float
    shared_dim: int | None

    @property
    def threshold(self) -> int:
        """Below which a draw is dropped."""
        return round(self.rate * (UNIFORM_MASK.value + 1))

    @property
    def factor(self) -> float:
        """What is kept is multiplied with it."""
        return 1.0 / (1.0 - self.rate)

    @property
    def shared(self) -> int:
        """Which dimension behind the samples shares a mask, 1 to 3 with the last; 0 for none.

        Raises
        ------
        ValueError
            It is none of the last three.
        """
        if self.shared_dim is None:
            return 0
        if not -3 <= self.shared_dim <= -1:
            raise ValueError(f"shared_dim must be in -3...-1 or None, found {self.shared_dim}")
        return 4 + self.shared_dim

    def check(self, num_samples: int) -> None:
        """Raise ValueError where samples have not a key each, or the rate is no probability."""
        if not 0 <= self.rate < 1:
            raise ValueError(f"dropout needs a rate of 0 to below 1, found {self.rate}")
        if self.key.shape != (num_samples,) or self.key.dtype != torch.int64:
            raise ValueError(
                f"dropout of {num_samples} samples needs as many keys of int64, found "
                f"{tuple(self.key.shape)} of {self.key.dtype}"
            )


def drawing(dropout: Dropout | None) -> tuple[Tensor | None, int, int, float]:
    """Key, layer, threshold and factor, as kernels take them."""
    if dropout is None:
        return None, 0, 0, 1.0
    return dropout.key, dropout.layer, dropout.threshold, dropout.factor
