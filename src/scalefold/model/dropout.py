"""Dropout on a residual update, its mask shared over one dimension (Suppl. sec. 1.11.6)."""

from __future__ import annotations

from torch import Tensor, nn

from scalefold.model.assembly import Assembly
from scalefold.ops.dropout import Dropout


class ResidualDropout(nn.Module):
    """Add an update to a representation, with dropout in training mode.

    Parameters
    ----------
    rate : float
        Probability of being dropped.
    shared_dim : int or None
        Dimension (from the end) that shares one mask: -3 for row-wise, -2 for column-wise dropout,
        None for independent elements.
    assembly : Assembly
        Gives this layer its number, a part of the mask's coordinates.
    """

    def __init__(self, rate: float, shared_dim: int | None, assembly: Assembly) -> None:
        super().__init__()
        self.rate, self.shared_dim = rate, shared_dim
        self.ops, self.layer = assembly.ops, assembly.next_layer()

    def forward(self, x: Tensor, update: Tensor, key_B: Tensor) -> Tensor:
        """Return ``x`` plus the update; shapes (B, ...), ``key_B`` int64."""
        dropout = self.draw(key_B)
        return x + update if dropout is None else self.ops.residual_dropout(x, update, *dropout)

    def draw(self, key_B: Tensor) -> Dropout | None:
        """Dropout of a pass, for an operation that adds its own update; None if nothing drops."""
        if not self.training or self.rate == 0.0:
            return None
        return Dropout(key_B, self.layer, self.rate, self.shared_dim)
