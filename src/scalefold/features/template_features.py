"""Features of the templates (Suppl. sec. 1.2.8, Table 1).

Legend: T templates, M residues of the crop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalefold.chem.residues import GAP
from scalefold.features.atoms import pseudo_beta
from scalefold.features.contract import Features
from scalefold.features.templates import Template
from scalefold.features.torsions import torsion_angles


class RawTemplates(NamedTuple):
    """Residues and atoms of templates, aligned to the crop.

    AlphaFold2 too measures the torsion angles of templates after the crop, so the first residue has
    no omega and no phi.

    Attributes
    ----------
    aatype : Tensor, shape (T, M), uint8
        0-20; 21 where a template has no residue.
    positions : Tensor, shape (T, M, 37, 3), float32
        Å.
    atom_mask : Tensor, shape (T, M, 37), bool
    """

    aatype: Tensor
    positions: Tensor
    atom_mask: Tensor


def align_templates(templates: Sequence[Template], residues: NDArray[np.int32]) -> RawTemplates:
    """Place the residues of templates at those of the query; a gap (21) is without atoms.

    Parameters
    ----------
    templates : sequence of (TemplateHit, ChainRecord)
    residues : ndarray, shape (M,), int32
        Residues of the query that are used, ascending.
    """
    shape = len(templates), len(residues)
    aatype = np.full(shape, GAP, np.uint8)
    positions = np.zeros((*shape, 37, 3), np.float32)
    mask = np.zeros((*shape, 37), np.bool_)
    for slot, (hit, chain) in enumerate(templates):
        inside = np.isin(hit.q_idx, residues)
        place, taken = np.searchsorted(residues, hit.q_idx[inside]), hit.t_idx[inside]
        aatype[slot, place] = chain.aatype[taken]
        positions[slot, place] = chain.positions[taken]
        mask[slot, place] = chain.atom_mask[taken]
    return RawTemplates(*map(torch.from_numpy, (aatype, positions, mask)))


def template_features(templates: RawTemplates) -> Features:
    """Features of templates, unbatched and unpadded."""
    aatype, positions, mask = templates
    aatype, mask = aatype.long(), mask.float()
    beta, beta_mask = pseudo_beta(aatype, positions, mask)
    torsions = torsion_angles(aatype, positions, mask)
    return {
        "template_mask": torch.ones(len(aatype), device=aatype.device),
        "template_aatype": aatype,
        "template_all_atom_positions": positions,
        "template_all_atom_mask": mask,
        "template_pseudo_beta": beta,
        "template_pseudo_beta_mask": beta_mask,
        "template_torsion_angles_sin_cos": torsions.sin_cos,
        "template_alt_torsion_angles_sin_cos": torsions.alternative_sin_cos,
        "template_torsion_angles_mask": torsions.mask,
    }
