"""Outer product mean: from the MSA to the pair representation (Suppl. Alg. 10)."""

from __future__ import annotations

from torch import Tensor, nn

from scalefold.model.assembly import Assembly
from scalefold.model.linear import Linear


class OuterProductMean(nn.Module):
    """Mean over sequences of the outer product of two projections (Alg. 10)."""

    def __init__(self, c_m: int, c_z: int, c_hidden: int, assembly: Assembly) -> None:
        super().__init__()
        self.ops, self.axis = assembly.ops, assembly.axis
        self.layer_norm = nn.LayerNorm(c_m)
        self.linear_1 = Linear(c_m, c_hidden)
        self.linear_2 = Linear(c_m, c_hidden)
        self.linear_out = Linear(c_hidden**2, c_z, init="final")

    def forward(self, m: Tensor, mask: Tensor, count: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``m``, and the updated pair representation.

        Parameters
        ----------
        m : Tensor, shape (B, S, N, c_m), sharded along N
        mask : Tensor, shape (B, S, N), sharded along N
        count : Tensor, shape (B, N, N), sharded along rows
            Number of sequences in which both residues are real.
        z : Tensor, shape (B, N, N, c_z), sharded along rows

        Returns
        -------
        m : Tensor
            For other users of ``m``, see ``ops.outer_product_operands``.
        z : Tensor, shape (B, N, N, c_z), sharded along rows
        """
        norm, first, second, out = self.layer_norm, self.linear_1, self.linear_2, self.linear_out
        a, b, m = self.ops.outer_product_operands(
            m, mask, norm.weight, norm.bias, first.weight, first.bias, second.weight, second.bias
        )
        b = self.axis.gather_to_sharded(b, dim=2).wait()
        z = self.ops.outer_product_mean(a, b, count, out.weight, out.bias, z)
        return m, z
