"""Invariant point attention (Suppl. Alg. 22).

Legend: B samples, I/J residues, H heads, C channels of a head, P points. Points and frames are in
units of the translation scale (10 Å).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalefold.config.schema import StructureModuleConfig
from scalefold.geometry.rigid import Rigid
from scalefold.model.linear import Linear

MASKED_LOGIT = 1e5
EPS = 1e-8
# softplus(x) = 1: head weights start at one.
_SOFTPLUS_INVERSE_OF_ONE = math.log(math.e - 1)


class PointProjection(nn.Module):
    """Points in the local frame of each residue, mapped to global coordinates."""

    def __init__(self, c_s: int, num_heads: int, num_points: int) -> None:
        super().__init__()
        self.points = (num_heads, num_points)
        self.linear = Linear(c_s, 3 * num_heads * num_points)

    def forward(self, s: Tensor, frames: Rigid) -> Tensor:
        """(B, I, c_s) and frames (B, I) to points (B, I, H, P, 3)."""
        # Channels are ordered (coordinate, head, point).
        local = self.linear(s).unflatten(-1, (3, *self.points)).movedim(-3, -1)
        return frames.unsqueeze(-1).unsqueeze(-1).apply(local)


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

    def forward(self, s: Tensor, z: Tensor, frames: Rigid, mask: Tensor) -> Tensor:
        """Update of the single representation.

        Parameters
        ----------
        s : Tensor, shape (B, I, c_s)
        z : Tensor, shape (B, I, J, c_z)
        frames : Rigid, batch shape (B, I)
        mask : Tensor, shape (B, I)

        Returns
        -------
        Tensor, shape (B, I, c_s)
        """
        config = self.config
        q = self.linear_q(s).unflatten(-1, (config.num_heads, -1))
        kv = self.linear_kv(s).unflatten(-1, (config.num_heads, -1))
        k, v = kv.split(config.c_hidden, dim=-1)
        q_points = self.linear_q_points(s, frames)
        k_points, v_points = self.linear_kv_points(s, frames).split(
            [config.num_qk_points, config.num_v_points], dim=-2
        )

        # Each of the three kinds of logits has unit variance at initialisation; each weighs 1/3.
        features = torch.einsum("bihc,bjhc->bhij", q, k) * config.c_hidden**-0.5
        pair = self.linear_b(z).permute(0, 3, 1, 2)
        point_weight = functional.softplus(self.head_weights) * math.sqrt(
            2 / (9 * config.num_qk_points)
        )
        distance = ((q_points[:, :, None] - k_points[:, None]) ** 2).sum((-1, -2))
        points = -0.5 * point_weight[:, None, None] * distance.permute(0, 3, 1, 2)
        logits = math.sqrt(1 / 3) * (features + pair + points)
        pair_mask = mask[:, :, None] * mask[:, None, :]
        logits = logits + (MASKED_LOGIT * (pair_mask - 1))[:, None]
        weights = torch.softmax(logits, dim=-1)

        out = torch.einsum("bhij,bjhc->bihc", weights, v)
        out_points = torch.einsum("bhij,bjhpx->bihpx", weights, v_points)
        out_points = frames.unsqueeze(-1).unsqueeze(-1).invert_apply(out_points)
        norms = torch.sqrt((out_points**2).sum(-1) + EPS)
        out_pair = torch.einsum("bhij,bijc->bihc", weights, z)
        # Coordinates are concatenated one after the other: x of all points, then y, then z.
        parts = [
            out.flatten(-2),
            out_points.movedim(-1, -3).flatten(-3),
            norms.flatten(-2),
            out_pair.flatten(-2),
        ]
        return self.linear_out(torch.cat(parts, -1))
