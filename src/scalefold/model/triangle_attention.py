"""Triangle attention (Suppl. Alg. 13, 14).

Legend: z (B, N, N, c) a pair representation, mask (B, N, N). With DAP, attention around the
starting node sees z sharded along rows, around the ending node along columns.
"""

from __future__ import annotations

from torch import Tensor, nn

from scalefold.model.assembly import Assembly
from scalefold.model.attention import GatedAttention
from scalefold.model.linear import Linear
from scalefold.ops.dropout import Dropout


class _TriangleAttention(nn.Module):
    """What Alg. 13 and 14 share; subclasses set the axis that attention runs along."""

    along: int

    def __init__(
        self, channels: int, head_channels: int, num_heads: int, assembly: Assembly
    ) -> None:
        super().__init__()
        self.axis = assembly.axis
        self.layer_norm = nn.LayerNorm(channels)
        self.linear = Linear(channels, num_heads, bias=False, init="normal")
        self.mha = GatedAttention(channels, head_channels, num_heads, self.along, assembly)

    def forward(self, z: Tensor, mask: Tensor, dropout: Dropout | None) -> Tensor:
        """Return the updated ``z``; both are sharded along the other axis."""
        rows = 3 - self.along
        projected, (bias,), z = self.mha.project(z, self.layer_norm, self.linear)
        # The bias of query q and key k is that of edge qk, around the ending node of edge kq.
        bias = self.axis.gather_to_sharded(bias, dim=rows).wait().permute(0, 3, rows, self.along)
        return self.mha.attend(z, projected, mask, bias, dropout)


class TriangleAttentionStartingNode(_TriangleAttention):
    """Gated self-attention along rows: edges that share their starting node (Alg. 13)."""

    along = 2


class TriangleAttentionEndingNode(_TriangleAttention):
    """Gated self-attention along columns: edges that share their ending node (Alg. 14)."""

    along = 1
