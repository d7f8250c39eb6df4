"""Transition layers (Suppl. Alg. 9, 15)."""

from __future__ import annotations

from torch import Tensor, nn

from scalefold.model.assembly import Assembly
from scalefold.model.linear import Linear


class Transition(nn.Module):
    """Two-layer network on each position of the MSA (Alg. 9) or pair (Alg. 15) representation.

    No mask is applied, as in AlphaFold2: padded positions are masked wherever others read them.
    """

    def __init__(self, channels: int, factor: int, assembly: Assembly) -> None:
        super().__init__()
        self.ops = assembly.ops
        self.layer_norm = nn.LayerNorm(channels)
        self.linear_1 = Linear(channels, factor * channels, init="relu")
        self.linear_2 = Linear(factor * channels, channels, init="final")

    def forward(self, x: Tensor) -> Tensor:
        """Return the updated ``x`` (..., channels), however it is sharded."""
        norm, up, down = self.layer_norm, self.linear_1, self.linear_2
        return self.ops.transition(
            x, norm.weight, norm.bias, up.weight, up.bias, down.weight, down.bias
        )
