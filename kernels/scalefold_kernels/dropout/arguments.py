"""Dropout of a layer, as all operations take it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.dropout.mask import UNIFORM_BITS, dropout_mask


class Dropout(NamedTuple):
    """Dropout of one layer in one pass: all that its mask depends on but the coordinates.

    Attributes
    ----------
    key : Tensor, shape (B,), int64
    layer : int
    rate : float
        Probability of being dropped, in [0, 1).
    shared_dim : int or None
        Dimension, counted from the end, over which one mask is shared (Suppl. sec. 1.11.6). Where
        a tensor is sharded, it is along this dimension, so no rank needs to know its offset.
    """

    key: Tensor
    layer: int
    rate: float
    shared_dim: int | None

    @property
    def threshold(self) -> int:
        """Below which a draw is dropped."""
        return round(self.rate * (1 << UNIFORM_BITS))

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

    def applied(self, update: Tensor) -> Tensor:
        """The update (B, ...) with dropped elements zeroed and the others scaled up."""
        shape = list(update.shape[1:])
        if self.shared_dim is not None:
            shape[self.shared_dim] = 1
        keep = dropout_mask(self.key, self.layer, self.rate, shape)
        return torch.where(keep, update * self.factor, 0.0)

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
