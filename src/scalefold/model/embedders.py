"""Embedding of the inputs, the recycled outputs and the extra MSA (Suppl. Alg. 3-5, 32).

Legend: B samples, S clustered rows, E extra rows, N residues. With DAP, pair tensors are made
sharded along rows: their row operand is split before it is embedded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalefold.chem.residues import CA, CB, RESTYPE_INDEX
from scalefold.config.schema import ModelConfig
from scalefold.features.contract import Features
from scalefold.model.assembly import Assembly
from scalefold.model.contract import Previous
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
        rows, row_index = self.axis.split(target_feat, dim=1), self.axis.split(residue_index, dim=1)
        z = self.linear_tf_z_i(rows)[:, :, None] + self.linear_tf_z_j(target_feat)[:, None]
        z = z + self._relative_position(row_index, residue_index)
        m = self.linear_msa_m(msa_feat) + self.linear_tf_m(target_feat)[:, None]
        return m, z

    def _relative_position(self, row_index: Tensor, residue_index: Tensor) -> Tensor:
        offset = row_index[:, :, None] - residue_index[:, None]
        offset = offset.clamp(-self.clip, self.clip) + self.clip
        position = one_hot(offset, 2 * self.clip + 1)
        return self.linear_relpos(position.to(self.linear_relpos.weight.dtype))


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
        distances = distance_one_hot(self.axis.split(beta, dim=1), beta, *self.bins)
        pair = self.layer_norm_z(self.axis.split(previous.pair, dim=1))
        pair = pair + self.linear(distances.to(self.linear.weight.dtype))
        return self.layer_norm_m(previous.msa_first_row), pair


class ExtraMsaEmbedder(nn.Module):
    """Embedding of the unclustered rows (Alg. 2, line 15; Suppl. sec. 1.7.2)."""

    def __init__(self, c_e: int, assembly: Assembly) -> None:
        super().__init__()
        self.axis = assembly.axis
        self.linear = Linear(EXTRA_MSA_CHANNELS, c_e)

    def forward(self, features: Features) -> Tensor:
        """Representation (B, E, N, c_e), sharded along E."""
        dtype = self.linear.weight.dtype
        symbols, has_deletion, deletion_value = (
            self.axis.split(features[name], dim=1)
            for name in ("extra_msa", "extra_has_deletion", "extra_deletion_value")
        )
        deletions = torch.stack([has_deletion, deletion_value], -1)
        classes = one_hot(symbols, MSA_CLASSES)
        return self.linear(torch.cat([classes.to(dtype), deletions.to(dtype)], -1))


def pseudo_beta(aatype: Tensor, positions: Tensor) -> Tensor:
    """C-beta positions, C-alpha of glycine: (..., N), (..., N, 37, 3) -> (..., N, 3)."""
    is_glycine = (aatype == _GLYCINE)[..., None]
    return torch.where(is_glycine, positions[..., CA, :], positions[..., CB, :])
