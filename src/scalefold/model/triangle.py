"""Triangle multiplication and triangle attention (Suppl. Alg. 11-14).

Legend: z (B, N, N, c) a pair representation, mask (B, N, N). With DAP, all of these but attention
around the ending node see z sharded along rows; that one sees it sharded along columns.
"""

from __future__ import annotations

from torch import Tensor, nn

from scalefold.model.assembly import Assembly
from scalefold.model.attention import GatedAttention
from scalefold.model.linear import Linear


class _TriangleMultiplication(nn.Module):
    """Parameters, projection and output, which Alg. 11 and 12 share."""

    def __init__(self, channels: int, c_hidden: int, assembly: Assembly) -> None:
        super().__init__()
        self.ops, self.axis = assembly.ops, assembly.axis
        self.layer_norm_in = nn.LayerNorm(channels)
        self.layer_norm_out = nn.LayerNorm(c_hidden)
        self.linear_a_p = Linear(channels, c_hidden)
        self.linear_a_g = Linear(channels, c_hidden, init="gating")
        self.linear_b_p = Linear(channels, c_hidden)
        self.linear_b_g = Linear(channels, c_hidden, init="gating")
        self.linear_g = Linear(channels, channels, init="gating")
        self.linear_z = Linear(c_hidden, channels, init="final")

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:
        """Update of ``z``; both are sharded along rows."""
        parameters = [
            parameter
            for layer in (
                self.layer_norm_in,
                self.linear_a_p,
                self.linear_a_g,
                self.linear_b_p,
                self.linear_b_g,
                self.linear_g,
            )
            for parameter in (layer.weight, layer.bias)
        ]
        a, b, gate = self.ops.triangle_projection(z, mask, *parameters)
        norm, out = self.layer_norm_out, self.linear_z
        return self.ops.triangle_output(
            self._product(a, b), gate, norm.weight, norm.bias, out.weight, out.bias
        )

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        raise NotImplementedError


class TriangleMultiplicationOutgoing(_TriangleMultiplication):
    """Update from outgoing edges (Alg. 11): own rows of a meet all rows of b."""

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        pending = self.axis.gather_to_sharded(b, dim=1)
        return self.ops.triangle_product_outgoing(a, pending.wait())


class TriangleMultiplicationIncoming(_TriangleMultiplication):
    """Update from incoming edges (Alg. 12): the sum over k is over rows, so each rank has its part.

    One reduce-scatter of the partial sums takes the place of an axis switch there, a gather and a
    switch back.
    """

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        partial = self.ops.triangle_product_incoming(a, b)
        return self.axis.reduce_to_sharded(partial, dim=1).wait()


class _TriangleAttention(nn.Module):
    """Parameters that Alg. 13 and 14 share."""

    def __init__(
        self, channels: int, head_channels: int, num_heads: int, along: int, assembly: Assembly
    ) -> None:
        super().__init__()
        self.ops, self.axis = assembly.ops, assembly.axis
        self.layer_norm = nn.LayerNorm(channels)
        self.linear = Linear(channels, num_heads, bias=False, init="normal")
        self.mha = GatedAttention(channels, head_channels, num_heads, along, assembly)

    def _bias(self, z: Tensor) -> Tensor:
        norm = self.layer_norm
        (bias,) = self.ops.normed_projection(
            z, norm.weight, norm.bias, [self.linear.weight], [None]
        )
        return bias


class TriangleAttentionStartingNode(_TriangleAttention):
    """Gated self-attention along rows: edges that share their starting node (Alg. 13)."""

    def __init__(
        self, channels: int, head_channels: int, num_heads: int, assembly: Assembly
    ) -> None:
        super().__init__(channels, head_channels, num_heads, 2, assembly)

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:
        """Update of ``z``; both are sharded along rows."""
        pending = self.axis.gather_to_sharded(self._bias(z), dim=1)
        projected = self.mha.project(z, self.layer_norm)
        return self.mha.attend(projected, mask, pending.wait().permute(0, 3, 1, 2))


class TriangleAttentionEndingNode(_TriangleAttention):
    """Gated self-attention along columns: edges that share their ending node (Alg. 14)."""

    def __init__(
        self, channels: int, head_channels: int, num_heads: int, assembly: Assembly
    ) -> None:
        super().__init__(channels, head_channels, num_heads, 1, assembly)

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:
        """Update of ``z``; both are sharded along columns."""
        pending = self.axis.gather_to_sharded(self._bias(z), dim=2)
        projected = self.mha.project(z, self.layer_norm)
        # The bias of query i and key k is that of edge ki: its first residue is the key's.
        return self.mha.attend(projected, mask, pending.wait().permute(0, 3, 2, 1))
