"""Features of the templates (Suppl. sec. 1.2.8, Table 1)."""

from __future__ import annotations

import torch

from scalefold.features.atoms import pseudo_beta
from scalefold.features.contract import Features
from scalefold.features.inputs import TemplateInputs
from scalefold.features.torsions import torsion_angles


def template_features(templates: TemplateInputs) -> Features:
    """Features of templates, unbatched and unpadded.

    Parameters
    ----------
    templates : TemplateInputs
    """
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
