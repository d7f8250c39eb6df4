"""Triangle multiplication (Suppl. Alg. 11, 12).

Legend: z (B, N, N, c) a pair representation, mask (B, N, N); with DAP both are sharded along rows.
"""

from __future__ import annotations

from torch import Tensor, nn

from scalefold.model.assembly import Assembly
from scalefold.model.linear import Linear
from scalefold.ops.dropout import Dropout


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

    def forward(self, z: Tensor, mask: Tensor, dropout: Dropout | None) -> Tensor:
        """Return the updated ``z``; both are sharded along rows."""
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
        a, b, gate, z = self.ops.triangle_projection(z, mask, *parameters)
        norm, out = self.layer_norm_out, self.linear_z
        return self.ops.triangle_output(
            z, self._product(a, b), gate, norm.weight, norm.bias, out.weight, out.bias, dropout
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
