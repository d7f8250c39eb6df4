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

from scalefold.config.model import StructureModuleConfig
from scalefold.geometry.rigid import Rigid
from scalefold.model.linear import Linear

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
    """The terms that all layers of the structure module share.

    Attributes
    ----------
    pair : Tensor, shape (B, I, J, c_z)
    pair_logits : Tensor, shape (B, H, I, J)
        The pair's and the mask's part of the logits.
    point_weight : Tensor, shape (H, 1)
        Factor of half a squared distance in the logits.
    weight, bias : Tensor, shapes (channels, c_s), (channels,)
        The four projections of the single representation as one.
    """

    pair: Tensor
    pair_logits: Tensor
    point_weight: Tensor
    weight: Tensor
    bias: Tensor


class InvariantPointAttention(nn.Module):
    """Attention over residues by features, pairs and distances of points (Alg. 22).

    Unlike the algorithm's text, and like the published code, the linear layers have biases.
    """

    def __init__(self, config: StructureModuleConfig, c_s: int, c_z: int) -> None:
        super().__init__()
        heads, hidden = config.num_heads, config.num_heads * config.c_hidden
        self.config = config
        self.linear_q = Linear(c_s, hidden)
        self.linear_kv = Linear(c_s, 2 * hidden)
        self.linear_q_points = PointProjection(c_s, heads, config.num_qk_points)
        self.linear_kv_points = PointProjection(
            c_s, heads, config.num_qk_points + config.num_v_points
        )
        self.linear_b = Linear(c_z, heads)
        self.head_weights = nn.Parameter(torch.full((heads,), _SOFTPLUS_INVERSE_OF_ONE))
        self.linear_out = Linear(
            heads * (c_z + config.c_hidden + 4 * config.num_v_points), c_s, init="final"
        )

    def shared_terms(self, z: Tensor, mask: Tensor) -> SharedTerms:
        """Compute once what all layers use.

        Parameters
        ----------
        z : Tensor, shape (B, I, J, c_z)
        mask : Tensor, shape (B, I)
        """
        pair_mask = mask[:, None, :, None] * mask[:, None, None, :]
        pair_logits = math.sqrt(1 / 3) * self.linear_b(z).permute(0, 3, 1, 2)
        point_weight = functional.softplus(self.head_weights) * math.sqrt(
            2 / (9 * self.config.num_qk_points)
        )
        return SharedTerms(
            pair=z,
            # Keys last in memory, too, for the softmax over them in each layer.
            pair_logits=(pair_logits + MASKED_LOGIT * (pair_mask - 1)).contiguous(),
            point_weight=math.sqrt(1 / 3) * point_weight[:, None],
            weight=self._packed("weight"),
            bias=self._packed("bias"),
        )

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

        Returns
        -------
        Tensor, shape (B, I, c_s)
        """
        config = self.config
        heads, hidden = config.num_heads, config.num_heads * config.c_hidden
        frames = frames.unsqueeze(-1).unsqueeze(-1)
        projected = functional.linear(s, shared.weight, shared.bias)
        q, kv, local = projected.tensor_split([hidden, 3 * hidden], dim=-1)
        q = q.unflatten(-1, (heads, -1))
        k, v = kv.unflatten(-1, (heads, -1)).chunk(2, dim=-1)
        points = frames.apply(local.unflatten(-1, (3, heads, -1)).movedim(-3, -1))
        q_points, k_points, v_points = points.split(
            [config.num_qk_points, config.num_qk_points, config.num_v_points], dim=-2
        )

        logits = self._logits(q, k, q_points, k_points, shared.point_weight)
        weights = torch.softmax(logits + shared.pair_logits, dim=-1)

        # Features and points of the values under the same weights: one product.
        values = torch.cat([v, v_points.flatten(-2)], -1)
        out, out_points = torch.einsum("bhij,bjhc->bihc", weights, values).tensor_split(
            [config.c_hidden], dim=-1
        )
        out_points = frames.invert_apply(out_points.unflatten(-1, (-1, 3)))
        norms = torch.sqrt((out_points**2).sum(-1) + EPS)
        out_pair = torch.einsum("bhij,bijc->bihc", weights, shared.pair)
        # Coordinates are concatenated one after the other: x of all points, then y, then z.
        parts = [
            out.flatten(-2),
            out_points.movedim(-1, -3).flatten(-3),
            norms.flatten(-2),
            out_pair.flatten(-2),
        ]
        return self.linear_out(torch.cat(parts, -1))

    def _logits(
        self, q: Tensor, k: Tensor, q_points: Tensor, k_points: Tensor, weight: Tensor
    ) -> Tensor:
        """The part of the features and of the points' distances in the logits, (B, H, I, J).

        As one product, q k - w/2 |x - y|^2 = (q, w x, -w/2 |x|^2, 1) (k, y, 1, -w/2 |y|^2). In
        float64, because squares of coordinates cancel in it, and TF32 would round them.

        Parameters
        ----------
        q, k : Tensor, shape (B, I or J, H, C)
        q_points, k_points : Tensor, shape (B, I or J, H, P, 3)
        weight : Tensor, shape (H, 1)
        """
        x, y = q_points.flatten(-2).double(), k_points.flatten(-2).double()
        half = -0.5 * weight.double()
        one = torch.ones_like(x[..., :1])
        # Each of the three kinds of logits has unit variance at initialisation; each weighs 1/3.
        queries = [q * (3 * self.config.c_hidden) ** -0.5, weight * x, half * _square(x), one]
        keys = [k, y, one, half * _square(y)]
        product = torch.einsum("bihc,bjhc->bhij", torch.cat(queries, -1), torch.cat(keys, -1))
        return product.to(q.dtype)


def _square(x: Tensor) -> Tensor:
    return x.square().sum(-1, keepdim=True)
