"""Layer normalisation as a module, for places where nothing is fused with it."""

from __future__ import annotations

from torch import Tensor, nn

from scalefold.model.assembly import Assembly


class LayerNorm(nn.LayerNorm):
    """torch's module, with the assembly's operation."""

    def __init__(self, channels: int, assembly: Assembly) -> None:
        super().__init__(channels)
        self.ops = assembly.ops

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension; (..., channels) -> (..., channels)."""
        return self.ops.layer_norm(x, self.weight, self.bias)
