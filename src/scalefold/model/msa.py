"""MSA attention (Suppl. Alg. 7, 8, 19).

Legend: m (B, S, N, c_m) the MSA representation, z (B, N, N, c_z) the pair representation. With DAP,
row attention sees m sharded along S, column attention along N, and z is sharded along its rows.
"""

from __future__ import annotations

from torch import Tensor, nn

from scalefold.model.assembly import Assembly
from scalefold.model.attention import GatedAttention, GlobalAttention
from scalefold.model.linear import Linear
from scalefold.ops.attention import LN2
from scalefold.ops.dropout import Dropout


class MsaRowAttentionWithPairBias(nn.Module):
    """Gated self-attention along each sequence, biased by the pair representation (Alg. 7)."""

    def __init__(
        self, c_m: int, c_z: int, head_channels: int, num_heads: int, assembly: Assembly
    ) -> None:
        super().__init__()
        self.ops, self.axis = assembly.ops, assembly.axis
        self.layer_norm_m = nn.LayerNorm(c_m)
        self.layer_norm_z = nn.LayerNorm(c_z)
        self.linear_z = Linear(c_z, num_heads, bias=False, init="normal")
        self.mha = GatedAttention(c_m, head_channels, num_heads, 2, assembly)

    def forward(
        self, m: Tensor, z: Tensor, mask: Tensor, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor]:
        """Return the updated ``m``, and ``z``; ``mask`` (B, S, N) is sharded as ``m`` is."""
        norm = self.layer_norm_z
        bias, z = self.ops.normed_projection(
            z, norm.weight, norm.bias, [self.linear_z.weight], [None], 1 / LN2
        )
        pending = self.axis.gather_to_sharded(bias, dim=1)
        projected, _, m = self.mha.project(m, self.layer_norm_m)
        bias = pending.wait().permute(0, 3, 1, 2)
        return self.mha.attend(m, projected, mask, bias, dropout), z


class _MsaAttention(nn.Module):
    """Normalisation and attention along a column; a module only for the names of parameters."""

    def __init__(self, c_m: int, head_channels: int, num_heads: int, assembly: Assembly) -> None:
        super().__init__()
        self.layer_norm_m = nn.LayerNorm(c_m)
        self.mha = GatedAttention(c_m, head_channels, num_heads, 1, assembly)

    def forward(self, m: Tensor, mask: Tensor) -> Tensor:
        projected, _, m = self.mha.project(m, self.layer_norm_m)
        return self.mha.attend(m, projected, mask, None, None)


class MsaColumnAttention(nn.Module):
    """Gated self-attention along each column (Alg. 8)."""

    def __init__(self, c_m: int, head_channels: int, num_heads: int, assembly: Assembly) -> None:
        super().__init__()
        self._msa_att = _MsaAttention(c_m, head_channels, num_heads, assembly)

    def forward(self, m: Tensor, mask: Tensor) -> Tensor:
        """Return the updated ``m``; both are sharded along N."""
        return self._msa_att(m, mask)


class MsaColumnGlobalAttention(nn.Module):
    """Global attention along each column of the extra MSA (Alg. 19)."""

    def __init__(self, c_m: int, head_channels: int, num_heads: int, assembly: Assembly) -> None:
        super().__init__()
        self.layer_norm_m = nn.LayerNorm(c_m)
        self.global_attention = GlobalAttention(c_m, head_channels, num_heads, assembly)

    def forward(self, m: Tensor, mask: Tensor) -> Tensor:
        """Return the updated ``m``; both are sharded along N."""
        return self.global_attention(m, mask, self.layer_norm_m)
