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
    """Parameters that Alg. 13 and 14 share."""

    def __init__(
        self, channels: int, head_channels: int, num_heads: int, along: int, assembly: Assembly
    ) -> None:
        super().__init__()
        self.axis = assembly.axis
        self.layer_norm = nn.LayerNorm(channels)
        self.linear = Linear(channels, num_heads, bias=False, init="normal")
        self.mha = GatedAttention(channels, head_channels, num_heads, along, assembly)


class TriangleAttentionStartingNode(_TriangleAttention):
    """Gated self-attention along rows: edges that share their starting node (Alg. 13)."""

    def __init__(
        self, channels: int, head_channels: int, num_heads: int, assembly: Assembly
    ) -> None:
        super().__init__(channels, head_channels, num_heads, 2, assembly)

    def forward(self, z: Tensor, mask: Tensor, dropout: Dropout | None) -> Tensor:
        """Return the updated ``z``; both are sharded along rows."""
        projected, (bias,), z = self.mha.project(z, self.layer_norm, self.linear)
        bias = self.axis.gather_to_sharded(bias, dim=1).wait().permute(0, 3, 1, 2)
        return self.mha.attend(z, projected, mask, bias, dropout)


class TriangleAttentionEndingNode(_TriangleAttention):
    """Gated self-attention along columns: edges that share their ending node (Alg. 14)."""

    def __init__(
        self, channels: int, head_channels: int, num_heads: int, assembly: Assembly
    ) -> None:
        super().__init__(channels, head_channels, num_heads, 1, assembly)

    def forward(self, z: Tensor, mask: Tensor, dropout: Dropout | None) -> Tensor:
        """Return the updated ``z``; both are sharded along columns."""
        projected, (bias,), z = self.mha.project(z, self.layer_norm, self.linear)
        # The bias of query i and key k is that of edge ki: its first residue is the key's.
        bias = self.axis.gather_to_sharded(bias, dim=2).wait().permute(0, 3, 2, 1)
        return self.mha.attend(z, projected, mask, bias, dropout)
