"""Embedding of the inputs, the recycled outputs and the extra MSA (Suppl. Alg. 3-5, 32).

Legend: B samples, S clustered rows, E extra rows, N residues. With DAP, pair tensors are made
sharded along rows: their row operand is split before it is embedded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalefold.chem.residues import CA, CB, RESTYPE_INDEX
from scalefold.config.model import ModelConfig
from scalefold.features.contract import Features
from scalefold.model.assembly import Assembly
from scalefold.model.contract import Previous
from scalefold.model.feature_linear import feature_linear
from scalefold.model.linear import Linear
from scalefold.model.norm import LayerNorm
from scalefold.model.one_hot import distance_one_hot, one_hot

TARGET_CHANNELS = 22
MSA_CHANNELS = 49
EXTRA_MSA_CHANNELS = 25
MSA_CLASSES = 23
_GLYCINE = RESTYPE_INDEX["G"]


class InputEmbedder(nn.Module):
    """Initial MSA and pair representations (Alg. 3), with relative positions (Alg. 4, 5)."""

    def __init__(self, config: ModelConfig, assembly: Assembly) -> None:
        super().__init__()
        self.axis, self.clip = assembly.axis, config.relative_position_clip
        self.linear_tf_z_i = Linear(TARGET_CHANNELS, config.c_z)
        self.linear_tf_z_j = Linear(TARGET_CHANNELS, config.c_z)
        self.linear_tf_m = Linear(TARGET_CHANNELS, config.c_m)
        self.linear_msa_m = Linear(MSA_CHANNELS, config.c_m)
        self.linear_relpos = Linear(2 * self.clip + 1, config.c_z)
        self._compiled_embed = assembly.compiled(InputEmbedder._embed)

    def forward(
        self, target_feat: Tensor, residue_index: Tensor, msa_feat: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Embed.

        Parameters
        ----------
        target_feat : Tensor, shape (B, N, 22)
        residue_index : Tensor, shape (B, N), int64
        msa_feat : Tensor, shape (B, S, N, 49)

        Returns
        -------
        m : Tensor, shape (B, S, N, c_m), replicated
        z : Tensor, shape (B, N, N, c_z), sharded along rows
        """
        row_feat, row_index = (self.axis.split(x, dim=1) for x in (target_feat, residue_index))
        return self._compiled_embed(self, row_feat, row_index, target_feat, residue_index, msa_feat)

    def _embed(
        self,
        row_feat: Tensor,
        row_index: Tensor,
        target_feat: Tensor,
        residue_index: Tensor,
        msa_feat: Tensor,
    ) -> tuple[Tensor, Tensor]:
        offset = row_index[:, :, None] - residue_index[:, None]
        offset = offset.clamp(-self.clip, self.clip) + self.clip
        position = one_hot(offset, 2 * self.clip + 1)
        z_i = feature_linear([row_feat], self.linear_tf_z_i)[:, :, None]
        z_j = feature_linear([target_feat], self.linear_tf_z_j)[:, None]
        z = z_i + z_j + feature_linear([position], self.linear_relpos)
        m = feature_linear([msa_feat], self.linear_msa_m)
        return m + feature_linear([target_feat], self.linear_tf_m)[:, None], z


class RecyclingEmbedder(nn.Module):
    """Embedding of the previous pass (Alg. 32)."""

    def __init__(self, config: ModelConfig, assembly: Assembly) -> None:
        super().__init__()
        self.axis = assembly.axis
        self.bins = (
            config.min_recycling_angstrom,
            config.max_recycling_angstrom,
            config.num_recycling_bins,
        )
        self.linear = Linear(config.num_recycling_bins, config.c_z)
        self.layer_norm_m = LayerNorm(config.c_m, assembly)
        self.layer_norm_z = LayerNorm(config.c_z, assembly)
        self._compiled_embed = assembly.compiled(RecyclingEmbedder._embed)

    def forward(self, aatype: Tensor, previous: Previous) -> tuple[Tensor, Tensor]:
        """Updates of the first MSA row and of the pair representation.

        The first pass, too, adds the embedding of zeros.

        Parameters
        ----------
        aatype : Tensor, shape (B, N), int64
        previous : Previous
            Replicated.

        Returns
        -------
        first_row : Tensor, shape (B, N, c_m), replicated
        pair : Tensor, shape (B, N, N, c_z), sharded along rows
        """
        beta = pseudo_beta(aatype, previous.positions)
        pair = self.layer_norm_z(self.axis.split(previous.pair, dim=1))
        pair = self._compiled_embed(self, self.axis.split(beta, dim=1), beta, pair)
        return self.layer_norm_m(previous.msa_first_row), pair

    def _embed(self, row_beta: Tensor, beta: Tensor, pair: Tensor) -> Tensor:
        return pair + feature_linear([distance_one_hot(row_beta, beta, *self.bins)], self.linear)


class ExtraMsaEmbedder(nn.Module):
    """Embedding of the unclustered rows (Alg. 2, line 15; Suppl. sec. 1.7.2)."""

    def __init__(self, c_e: int, assembly: Assembly) -> None:
        super().__init__()
        self.axis = assembly.axis
        self.linear = Linear(EXTRA_MSA_CHANNELS, c_e)
        self._compiled_embed = assembly.compiled(ExtraMsaEmbedder._embed)

    def forward(self, features: Features) -> Tensor:
        """Representation (B, E, N, c_e), sharded along E."""
        names = ("extra_msa", "extra_has_deletion", "extra_deletion_value")
        parts = (self.axis.split(features[name], dim=1) for name in names)
        return self._compiled_embed(self, *parts)

    def _embed(self, symbols: Tensor, *deletions: Tensor) -> Tensor:
        parts = [one_hot(symbols, MSA_CLASSES), *(x[..., None] for x in deletions)]
        return feature_linear(parts, self.linear)


def pseudo_beta(aatype: Tensor, positions: Tensor) -> Tensor:
    """C-beta positions, C-alpha of glycine: (..., N), (..., N, 37, 3) -> (..., N, 3)."""
    is_glycine = (aatype == _GLYCINE)[..., None]
    return torch.where(is_glycine, positions[..., CA, :], positions[..., CB, :])
