"""Output heads (Suppl. sec. 1.9.6-1.9.10).

Legend: B samples, S clustered rows, N residues.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalefold.config.model import ModelConfig
from scalefold.model.linear import Linear

MASKED_MSA_CLASSES = 23
NUM_ATOMS = 37


class PlddtHead(nn.Module):
    """lDDT-Cα of each residue, in bins (sec. 1.9.6, Alg. 29)."""

    def __init__(self, c_s: int, channels: int, num_bins: int) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(c_s)
        self.linear_1 = Linear(c_s, channels, init="relu")
        self.linear_2 = Linear(channels, channels, init="relu")
        self.linear_3 = Linear(channels, num_bins, init="final")

    def forward(self, s: Tensor) -> Tensor:
        """Logits (B, N, bins) of the structure module's single representation (B, N, c_s)."""
        s = torch.relu(self.linear_1(self.layer_norm(s)))
        return self.linear_3(torch.relu(self.linear_2(s)))


class DistogramHead(nn.Module):
    """Distance between C-beta atoms, in bins, symmetric (sec. 1.9.8)."""

    def __init__(self, c_z: int, num_bins: int) -> None:
        super().__init__()
        self.linear = Linear(c_z, num_bins, init="final")

    def forward(self, z: Tensor) -> Tensor:
        """Logits (B, N, N, bins)."""
        logits = self.linear(z)
        return logits + logits.transpose(1, 2)


class LinearHead(nn.Module):
    """One linear layer: masked MSA (sec. 1.9.9), resolved atoms (1.9.10), aligned error (1.9.7)."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.linear = Linear(channels, num_classes, init="final")

    def forward(self, x: Tensor) -> Tensor:
        """Logits (..., classes)."""
        return self.linear(x)


class AuxiliaryHeads(nn.Module):
    """All heads beside the structure; each is called on its own by ``AlphaFold``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.plddt = PlddtHead(config.c_s, config.c_plddt, config.num_plddt_bins)
        self.distogram = DistogramHead(config.c_z, config.num_distogram_bins)
        self.masked_msa = LinearHead(config.c_m, MASKED_MSA_CLASSES)
        self.experimentally_resolved = LinearHead(config.c_s, NUM_ATOMS)
        self.tm = LinearHead(config.c_z, config.num_pae_bins) if config.pae_head else None
