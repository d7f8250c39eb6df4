"""The attention layers' parameters, shared by MSA, triangle and template attention.

Legend: B samples, R rows (independent attentions), Q/K positions, H heads, C channels of a head.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from scalefold.model.assembly import Assembly
from scalefold.model.linear import Linear
from scalefold.ops.attention import LN2
from scalefold.ops.dropout import Dropout


class Projected(NamedTuple):
    """The projections that attention takes.

    Attributes
    ----------
    q, k, v, gate : Tensor, each (B, R, Q, H, C)
    scale : float
        Factor from the products of queries and keys to logits; `LN2` if these are in bits.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    scale: float


class GatedAttention(nn.Module):
    """Multi-head self-attention with a gate, over one of the two axes of a representation.

    The part of Suppl. Alg. 7, 8, 13 and 14 that they have in common.

    Parameters
    ----------
    along : {1, 2}
        Axis of the representation that attention runs along; the other holds the independent rows.
    """

    def __init__(
        self, channels: int, head_channels: int, num_heads: int, along: int, assembly: Assembly
    ) -> None:
        super().__init__()
        self.num_heads, self.along, self.ops = num_heads, along, assembly.ops
        self.scale = head_channels**-0.5
        hidden = head_channels * num_heads
        self.linear_q = Linear(channels, hidden, bias=False, init="glorot")
        self.linear_k = Linear(channels, hidden, bias=False, init="glorot")
        self.linear_v = Linear(channels, hidden, bias=False, init="glorot")
        self.linear_g = Linear(channels, hidden, init="gating")
        self.linear_o = Linear(hidden, channels, init="final")

    def project(
        self, x: Tensor, norm: nn.LayerNorm, *others: Linear
    ) -> tuple[Projected, list[Tensor], Tensor]:
        """All projections of the normalised input.

        Parameters
        ----------
        x : Tensor, the representation
        others
            Further projections of the normalised input. The last is a pair bias in bits; the
            queries are then in bits too.

        Returns
        -------
        projected : Projected
        others : list of Tensor
        x : Tensor
            For other users of ``x``, see ``ops.normed_projection``.
        """
        scale = LN2 if others else self.scale
        layers = (self.linear_q, self.linear_k, self.linear_v, self.linear_g, *others)
        q, k, v, gate, *rest, x = self.ops.normed_projection(
            x,
            norm.weight,
            norm.bias,
            [f.weight for f in layers],
            [f.bias for f in layers],
            self.scale / scale,
            1 / LN2 if others else 1.0,
        )
        q, k, v, gate = (
            self._rows_first(p.unflatten(-1, (self.num_heads, -1))) for p in (q, k, v, gate)
        )
        return Projected(q, k, v, gate, scale), rest, x

    def attend(
        self,
        x: Tensor,
        projected: Projected,
        mask: Tensor,
        bias_BHQK: Tensor | None,
        dropout: Dropout | None,
    ) -> Tensor:
        """Return ``x`` with the attention's output added.

        Parameters
        ----------
        x, projected
            From ``project``.
        mask : Tensor, the first three dimensions of the representation
            1 for positions that may be attended to.
        bias_BHQK : Tensor or None
            In bits, see `LN2`.
        dropout : Dropout or None
            Of what is added.
        """
        *tensors, scale = projected
        out = self.ops.attention(*tensors, self._rows_first(mask), bias_BHQK, LN2, scale)
        heads, linear = self._rows_first(out).flatten(-2), self.linear_o
        return self.ops.residual_linear(x, heads, linear.weight, linear.bias, dropout)

    def _rows_first(self, x: Tensor) -> Tensor:
        """Swap the axes, as a view, where attention runs along the first; its own inverse."""
        return x if self.along == 2 else x.transpose(1, 2)


class GlobalAttention(nn.Module):
    """Attention of one mean query a row, keys and values shared by heads (Suppl. Alg. 19).

    Attention runs along axis 1 of the representation.
    """

    def __init__(
        self, channels: int, head_channels: int, num_heads: int, assembly: Assembly
    ) -> None:
        super().__init__()
        self.ops = assembly.ops
        hidden = head_channels * num_heads
        self.linear_q = Linear(channels, hidden, bias=False, init="glorot")
        self.linear_k = Linear(channels, head_channels, bias=False, init="glorot")
        self.linear_v = Linear(channels, head_channels, bias=False, init="glorot")
        self.linear_g = Linear(channels, hidden, init="gating")
        self.linear_o = Linear(hidden, channels, init="final")

    def forward(self, x: Tensor, mask: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return the updated ``x`` (B, S, N, C) under ``mask`` (B, S, N)."""
        return self.ops.global_attention(
            x,
            mask,
            norm.weight,
            norm.bias,
            self.linear_q.weight,
            self.linear_k.weight,
            self.linear_v.weight,
            self.linear_g.weight,
            self.linear_g.bias,
            self.linear_o.weight,
            self.linear_o.bias,
        )
