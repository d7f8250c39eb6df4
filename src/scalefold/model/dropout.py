"""Dropout of a residual update, its mask shared over one dimension (Suppl. sec. 1.11.6)."""

from __future__ import annotations

from torch import Tensor, nn

from scalefold.model.assembly import Assembly
from scalefold.ops.dropout import Dropout


class DropoutLayer(nn.Module):
    """Rate and number of a layer that drops elements in training mode.

    Parameters
    ----------
    shared_dim : int or None
        Dimension (from the end) that shares one mask: -3 for row-wise, -2 for column-wise dropout,
        None for independent elements.
    assembly : Assembly
        Gives this layer its number, a part of the mask's coordinates.
    """

    def __init__(self, rate: float, shared_dim: int | None, assembly: Assembly) -> None:
        super().__init__()
        self.rate, self.shared_dim = rate, shared_dim
        self.layer = assembly.next_layer()

    def draw(self, key_B: Tensor) -> Dropout | None:
        """Dropout of a pass, for the operation that adds the update; None if nothing drops."""
        if not self.training or self.rate == 0.0:
            return None
        return Dropout(key_B, self.layer, self.rate, self.shared_dim)
