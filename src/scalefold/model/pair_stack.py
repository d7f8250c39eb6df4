"""The pair half of a block: triangle updates and transition (Suppl. Alg. 6, 16, 18).

Layout with DAP: z enters and leaves sharded along rows; it is switched to columns for
attention around the ending node and back after it. Masks are replicated and split where used.
A mask of dropout is shared over the dimension along which z is sharded at that place (rows;
columns at the ending node), so it is the same on every rank.
"""

from __future__ import annotations

from torch import Tensor, nn

from scalefold.model.assembly import Assembly
from scalefold.model.dropout import DropoutLayer
from scalefold.model.transition import Transition
from scalefold.model.triangle_attention import (
    TriangleAttentionEndingNode,
    TriangleAttentionStartingNode,
)
from scalefold.model.triangle_multiplication import (
    TriangleMultiplicationIncoming,
    TriangleMultiplicationOutgoing,
)


class _PairUpdates(nn.Module):
    """The four triangle updates, each with its dropout, and the transition. Subclasses set the
    order.
    """

    def __init__(
        self,
        channels: int,
        c_hidden_triangle: int,
        head_channels: int,
        num_heads: int,
        transition_factor: int,
        dropout: float,
        assembly: Assembly,
    ) -> None:
        super().__init__()
        self.axis = assembly.axis
        self.tri_mul_out = TriangleMultiplicationOutgoing(channels, c_hidden_triangle, assembly)
        self.tri_mul_in = TriangleMultiplicationIncoming(channels, c_hidden_triangle, assembly)
        self.tri_att_start = TriangleAttentionStartingNode(
            channels, head_channels, num_heads, assembly
        )
        self.tri_att_end = TriangleAttentionEndingNode(channels, head_channels, num_heads, assembly)
        self.pair_transition = Transition(channels, transition_factor, assembly)
        self.dropout_mul_out = DropoutLayer(dropout, -3, assembly)
        self.dropout_mul_in = DropoutLayer(dropout, -3, assembly)
        self.dropout_att_start = DropoutLayer(dropout, -3, assembly)
        self.dropout_att_end = DropoutLayer(dropout, -2, assembly)

    def _multiply(self, z: Tensor, mask: Tensor, key: Tensor) -> Tensor:
        rows = self.axis.split(mask, dim=1)
        z = self.tri_mul_out(z, rows, self.dropout_mul_out.draw(key))
        return self.tri_mul_in(z, rows, self.dropout_mul_in.draw(key))

    def _attend(self, z: Tensor, mask: Tensor, key: Tensor) -> Tensor:
        dropout = self.dropout_att_start.draw(key)
        z = self.tri_att_start(z, self.axis.split(mask, dim=1), dropout)
        z = self.axis.switch(z, sharded=1, to=2).wait()
        dropout = self.dropout_att_end.draw(key)
        # The mask is symmetric: its columns lie in memory as kernels read them, as its rows.
        columns = self.axis.split(mask, dim=1).transpose(1, 2)
        z = self.tri_att_end(z, columns, dropout)
        return self.axis.switch(z, sharded=2, to=1).wait()


class PairStack(_PairUpdates):
    """Pair updates of an Evoformer or extra MSA block: multiplication, then attention (Alg. 6)."""

    def forward(self, z: Tensor, pair_mask: Tensor, key: Tensor) -> Tensor:
        """Return the updated z.

        Parameters
        ----------
        z : Tensor, shape (B, N, N, c), sharded along rows
        pair_mask : Tensor, shape (B, N, N), symmetric, replicated
        key : Tensor, shape (B,), int64
            Key of the dropout masks.
        """
        z = self._attend(self._multiply(z, pair_mask, key), pair_mask, key)
        return self.pair_transition(z)


class TemplatePairBlock(_PairUpdates):
    """Block of the template pair stack: attention, then multiplication (Alg. 16).

    The other order than in the Evoformer, as in the code that the published weights come from.
    """

    def forward(self, t: Tensor, pair_mask: Tensor, key: Tensor) -> Tensor:
        """Return the updated t; arguments as ``PairStack``, templates in the batch dimension."""
        t = self._multiply(self._attend(t, pair_mask, key), pair_mask, key)
        return self.pair_transition(t)
