"""What one pass of the model takes and returns.

Legend: B samples, N residues, S MSA cluster rows, T templates, L structure module layers.
Positions and translations are in Å, rotations are matrices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scalefold.chem.residues import ATOM37
from scalefold.config.model import ModelConfig
from scalefold.geometry.rigid import Rigid


class Previous(NamedTuple):
    """What one recycling pass passes to the next; zeros before the first (Suppl. Alg. 32).

    Attributes
    ----------
    msa_first_row : Tensor, shape (B, N, c_m)
    pair : Tensor, shape (B, N, N, c_z)
    positions : Tensor, shape (B, N, 37, 3), float32
        Predicted atom37 positions.
    """

    msa_first_row: Tensor
    pair: Tensor
    positions: Tensor

    @staticmethod
    def zeros(batch: int, num_res: int, config: ModelConfig, like: Tensor) -> Previous:
        """The input of the first pass.

        Parameters
        ----------
        like : Tensor
            A parameter of the trunk: gives device and type. Positions are in float32 at least.
        """
        dtype = torch.promote_types(like.dtype, torch.float32)
        return Previous(
            like.new_zeros(batch, num_res, config.c_m),
            like.new_zeros(batch, num_res, num_res, config.c_z),
            like.new_zeros(batch, num_res, len(ATOM37), 3, dtype=dtype),
        )


class Templates(NamedTuple):
    """The embedding of the templates. Nothing recycled enters it, so it is made once a sample.

    Attributes
    ----------
    pair : Tensor, shape (B, T, N, N, c_t)
        Pair representation of each template, sharded along rows.
    mask : Tensor, shape (B, T)
    rows : Tensor or None, shape (B, T, N, c_m)
        Rows for the MSA stack; None in presets without torsion angles of templates.
    rows_mask : Tensor or None, shape (B, T, N)
    """

    pair: Tensor
    mask: Tensor
    rows: Tensor | None
    rows_mask: Tensor | None


class Structure(NamedTuple):
    """Output of the structure module (Suppl. Alg. 20), all float32.

    Attributes
    ----------
    backbone : Rigid, batch shape (L, B, N)
        Backbone frame after each layer.
    sidechain : Rigid, batch shape (L, B, N, 8)
        Frames of all rigid groups after each layer.
    unnormalized_angles, angles : Tensor, shape (L, B, N, 7, 2)
        (sin, cos) of omega, phi, psi, chi1-4.
    positions : Tensor, shape (L, B, N, 14, 3)
        atom14 positions after each layer.
    single : Tensor, shape (B, N, c_s)
        Single representation after the last layer.
    """

    backbone: Rigid
    sidechain: Rigid
    unnormalized_angles: Tensor
    angles: Tensor
    positions: Tensor
    single: Tensor


class Outputs(NamedTuple):
    """All outputs of one pass. With DAP, each rank has all of them whole.

    Attributes
    ----------
    msa : Tensor, shape (B, S, N, c_m)
        Final MSA representation, without the template rows.
    pair : Tensor, shape (B, N, N, c_z)
    single : Tensor, shape (B, N, c_s)
        Evoformer's single representation.
    positions : Tensor, shape (B, N, 37, 3)
        Final atom37 positions, zero where the residue type has no such atom.
    position_mask : Tensor, shape (B, N, 37)
    distogram_logits : Tensor, shape (B, N, N, 64)
    masked_msa_logits : Tensor, shape (B, S, N, 23)
    plddt_logits : Tensor, shape (B, N, 50)
    experimentally_resolved_logits : Tensor, shape (B, N, 37)
    pae_logits : Tensor or None, shape (B, N, N, 64)
        None in presets without the TM-score head.
    """

    msa: Tensor
    pair: Tensor
    single: Tensor
    structure: Structure
    positions: Tensor
    position_mask: Tensor
    distogram_logits: Tensor
    masked_msa_logits: Tensor
    plddt_logits: Tensor
    experimentally_resolved_logits: Tensor
    pae_logits: Tensor | None
