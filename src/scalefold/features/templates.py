"""Templates: which hits are used, and their features (Suppl. sec. 1.2.3, 1.2.8).

The shards hold hits that AlphaFold2's sequence filters let pass; dates and observed atoms are
looked at here. Legend: T templates used, N residues of the query.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from scalefold.chem.residues import GAP
from scalefold.config.schema import FeaturesConfig
from scalefold.features.atoms import pseudo_beta
from scalefold.features.contract import Features
from scalefold.features.draws import SampleDraws
from scalefold.features.random import integers_below
from scalefold.features.torsions import torsion_angles
from scalefold.shards.records import ChainRecord, TemplateHit

Template = tuple[TemplateHit, ChainRecord]

MIN_TEMPLATE_ATOMS = 5
"""Aligned, observed atoms that a template must have: those of one alanine."""


def usable_templates(
    templates: Sequence[Template], query_date: datetime.date | None, margin_days: int
) -> list[Template]:
    """Drop templates that are too new or have no structure where they are aligned.

    Parameters
    ----------
    templates : sequence of (TemplateHit, ChainRecord)
        By falling ``sum_probs``.
    query_date : date or None
        Release date of the query. Where it is unknown no template can be shown to be old enough,
        and none is used; the same goes for a template without a date.
    margin_days : int
        A template must have been released at least this many days before the query.
    """
    if query_date is None:
        return []
    newest = query_date - datetime.timedelta(days=margin_days)
    return [
        (hit, chain)
        for hit, chain in templates
        if chain.release_date is not None
        and chain.release_date <= newest
        and int(chain.atom_mask[hit.t_idx].sum()) >= MIN_TEMPLATE_ATOMS
    ]


def draw_templates(
    templates: Sequence[Template], draws: SampleDraws, config: FeaturesConfig
) -> list[Template]:
    """Choose the templates of a training sample.

    Of the best ``n <= template_pool`` hits a random ``k`` are taken in random order;
    ``k = min(U{0..n}, max_templates)`` (alphafold), or ``U{0..min(n, max_templates)}`` (mlperf).
    """
    n = min(len(templates), config.template_pool)
    most = n if config.template_draw == "alphafold" else min(n, config.max_templates)
    count = int(integers_below(np.asarray([draws.template_count]), most + 1)[0])
    order = draws.template_order[draws.template_order < n]
    return [templates[rank] for rank in order[: min(count, config.max_templates)]]


def template_features(
    templates: Sequence[Template], num_res: int, device: torch.device
) -> Features:
    """Features of templates over the query's full length, unbatched and unpadded.

    Query residues without an aligned template residue are gaps (21) without atoms.

    Parameters
    ----------
    templates : sequence of (TemplateHit, ChainRecord)
    num_res : int
        Residues of the query.
    device : torch.device
    """
    count = len(templates)
    aatype: NDArray[np.int64] = np.full((count, num_res), GAP, np.int64)
    positions: NDArray[np.float32] = np.zeros((count, num_res, 37, 3), np.float32)
    mask: NDArray[np.float32] = np.zeros((count, num_res, 37), np.float32)
    for slot, (hit, chain) in enumerate(templates):
        aatype[slot, hit.q_idx] = chain.aatype[hit.t_idx]
        positions[slot, hit.q_idx] = chain.positions[hit.t_idx]
        mask[slot, hit.q_idx] = chain.atom_mask[hit.t_idx]
    aatype_TN = torch.from_numpy(aatype).to(device)
    positions_TN = torch.from_numpy(positions).to(device)
    mask_TN = torch.from_numpy(mask).to(device)
    beta, beta_mask = pseudo_beta(aatype_TN, positions_TN, mask_TN)
    torsions = torsion_angles(aatype_TN, positions_TN, mask_TN)
    return {
        "template_mask": torch.ones(count, device=device),
        "template_aatype": aatype_TN,
        "template_all_atom_positions": positions_TN,
        "template_all_atom_mask": mask_TN,
        "template_pseudo_beta": beta,
        "template_pseudo_beta_mask": beta_mask,
        "template_torsion_angles_sin_cos": torsions.sin_cos,
        "template_alt_torsion_angles_sin_cos": torsions.alternative_sin_cos,
        "template_torsion_angles_mask": torsions.mask,
    }
