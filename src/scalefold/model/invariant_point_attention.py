"""Invariant point attention (Suppl. Alg. 22).

Legend: B samples, I/J residues, H heads, C channels of a head, P points. Points and frames are in
units of the translation scale (10 Å).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalefold.config.schema import StructureModuleConfig
from scalefold.geometry.rigid import Rigid
from scalefold.model import shared_gradient, shared_linear, shared_pair
from scalefold.model.assembly import Assembly
from scalefold.model.linear import Linear, WideLinear
from scalefold.model.shared_gradient import Total
from scalefold.model.shared_linear import SharedLinear
from scalefold.model.shared_pair import SharedPair

MASKED_LOGIT = 1e5
EPS = 1e-8
# softplus(x) = 1: head weights start at one.
_SOFTPLUS_INVERSE_OF_ONE = math.log(math.e - 1)


class PointProjection(nn.Module):
    """Parameters of the points that a residue holds in its local frame."""

    def __init__(self, c_s: int, num_heads: int, num_points: int) -> None:
        super().__init__()
        self.points = (num_heads, num_points)
        self.linear = Linear(c_s, 3 * num_heads * num_points)

    def by_coordinate(self, name: str) -> Tensor:
        """The layer's ``weight`` or ``bias``; channels are (coordinate, head, point)."""
        parameter: Tensor = getattr(self.linear, name)
        return parameter.unflatten(0, (3, *self.points))


class SharedTerms(NamedTuple):
    """What does not change from layer to layer of the structure module, as one of them uses it.

    Attributes
    ----------
    pair : SharedPair
        (B, I, J, c_z).
    pair_logits : Tensor, shape (B, H, I, J)
        What pair and mask add to the logits.
    point_weight : Tensor, shape (H,)
        Of half a squared distance in the logits.
    projections : SharedLinear
        The four of the single representation as one, (channels, c_s).
    linear_out : SharedLinear
    """

    pair: SharedPair
    pair_logits: Tensor
    point_weight: Tensor
    projections: SharedLinear
    linear_out: SharedLinear


class InvariantPointAttention(nn.Module):
    """Attention over residues by features, pairs and distances of points (Alg. 22).

    Unlike the algorithm's text, and like the published code, the linear layers have biases.
    """

    def __init__(
        self, config: StructureModuleConfig, c_s: int, c_z: int, assembly: Assembly
    ) -> None:
        super().__init__()
        heads, hidden = config.num_heads, config.num_heads * config.c_hidden
        self.config, self.ops = config, assembly.ops
        self.linear_q = Linear(c_s, hidden)
        self.linear_kv = Linear(c_s, 2 * hidden)
        self.linear_q_points = PointProjection(c_s, heads, config.num_qk_points)
        self.linear_kv_points = PointProjection(
            c_s, heads, config.num_qk_points + config.num_v_points
        )
        self.linear_b = Linear(c_z, heads)
        self.head_weights = nn.Parameter(torch.full((heads,), _SOFTPLUS_INVERSE_OF_ONE))
        channels = heads * (c_z + config.c_hidden + 4 * config.num_v_points)
        self.linear_out = WideLinear(channels, c_s, assembly, init="final")

    def shared_terms(self, z: Tensor, mask: Tensor, count: int, add: Total) -> list[SharedTerms]:
        """Compute once what all layers use; for each of them.

        Parameters
        ----------
        z : Tensor, shape (B, I, J, c_z)
        mask : Tensor, shape (B, I)
        count : int
            Number of layers.
        add : Total
            Adds up their gradients.
        """
        pair_mask = mask[:, None, :, None] * mask[:, None, None, :]
        pair_logits = math.sqrt(1 / 3) * self.linear_b(z).permute(0, 3, 1, 2)
        point_weight = functional.softplus(self.head_weights) * math.sqrt(
            2 / (9 * self.config.num_qk_points)
        )
        # Keys last in memory, too, for the softmax over them in each layer.
        pair_logits = (pair_logits + MASKED_LOGIT * (pair_mask - 1)).contiguous()
        pairs = shared_pair.for_layers(self.ops, z, self.config.num_heads, count)
        terms = shared_gradient.for_layers(
            (pair_logits, math.sqrt(1 / 3) * point_weight), count, add
        )
        projections = shared_linear.for_layers(
            self.ops,
            self._packed("weight"),
            self._packed("bias"),
            relu=False,
            shape=mask.shape,
            count=count,
        )
        linear_out = self.linear_out.for_layers(mask.shape, count)
        return [
            SharedTerms(pair, logits, weight, projection, end)
            for pair, (logits, weight), projection, end in zip(
                pairs, terms, projections, linear_out, strict=True
            )
        ]

    def _packed(self, name: str) -> Tensor:
        """Weights or biases of queries, keys and values, and all points, by output channel."""
        points = [f.by_coordinate(name) for f in (self.linear_q_points, self.linear_kv_points)]
        features = [getattr(f, name) for f in (self.linear_q, self.linear_kv)]
        return torch.cat([*features, torch.cat(points, dim=2).flatten(0, 2)])

    def forward(self, s: Tensor, frames: Rigid, shared: SharedTerms) -> Tensor:
        """Update of the single representation.

        Parameters
        ----------
        s : Tensor, shape (B, I, c_s)
        frames : Rigid, batch shape (B, I)
        shared : SharedTerms

        Returns
        -------
        Tensor, shape (B, I, c_s)
        """
        config = self.config
        heads, hidden = config.num_heads, config.num_heads * config.c_hidden
        frames = frames.unsqueeze(-1).unsqueeze(-1)
        projected = shared.projections.apply(self.ops, s)
        q, kv, local = projected.tensor_split([hidden, 3 * hidden], dim=-1)
        q = q.unflatten(-1, (heads, -1))
        k, v = kv.unflatten(-1, (heads, -1)).chunk(2, dim=-1)
        points = frames.apply(local.unflatten(-1, (3, heads, -1)).movedim(-3, -1))
        of_points = points.split(
            [config.num_qk_points, config.num_qk_points, config.num_v_points], dim=-2
        )
        out, out_points, out_pair = shared.pair.attend(
            self.ops, q, k, v, *of_points, shared.pair_logits, shared.point_weight
        )
        out_points = frames.invert_apply(out_points)
        norms = torch.sqrt((out_points**2).sum(-1) + EPS)
        # Coordinates are concatenated one after the other: x of all points, then y, then z.
        parts = [
            out.flatten(-2),
            out_points.movedim(-1, -3).flatten(-3),
            norms.flatten(-2),
            out_pair.flatten(-2),
        ]
        return self.linear_out.in_layer(torch.cat(parts, -1), shared.linear_out)
