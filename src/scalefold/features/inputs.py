"""What features are made from, as plain tensors: all decisions made, no transform done.

`feature_inputs` runs where the sample was read; its result can be sent to another process and to a
GPU, where `scalefold.features.pipeline.features_of` makes the features without ever asking the host
anything: whatever a shape depends on is a Python number here.

Legend: N residues of the chain, M of the crop, T templates, R alignment rows, S cluster centres,
K rows to be clustered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalefold.chem.residues import GAP
from scalefold.config.schema import FeaturesConfig
from scalefold.errors import InputError
from scalefold.features.alignment import StoredAlignment
from scalefold.features.choices import Choices
from scalefold.features.draws import MsaDraws
from scalefold.features.masking import replacement_bounds
from scalefold.features.msa_rows import choose_rows
from scalefold.features.query import Query
from scalefold.features.targets import TargetInputs
from scalefold.features.templates import Template


class TemplateInputs(NamedTuple):
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


class PassInputs(NamedTuple):
    """Decisions of one recycling pass.

    Attributes
    ----------
    centres : Tensor, shape (S,), int32
        Rows that are cluster centres, the query first.
    others : Tensor, shape (K,), int32
        Rows that are clustered; the first of them are the extra rows.
    mask_position, mask_symbol : Tensor, shape (S, N), float32
        Uniform in [0, 1).
    dropout_key : int
    """

    centres: Tensor
    others: Tensor
    mask_position: Tensor
    mask_symbol: Tensor
    dropout_key: int


class FeatureInputs(NamedTuple):
    """The inputs that a chain's features are made from.

    Attributes
    ----------
    residues : Tensor, shape (M,), int32
        Which of the chain's are used.
    padded_length : int
        Residues to pad to.
    aatype : Tensor, shape (M,), uint8
        Of these residues.
    templates : TemplateInputs
    alignment : StoredAlignment
        All rows, full length.
    bounds : Tensor, shape (N, 22), float32
        Of `scalefold.features.masking.replacement_bounds`.
    passes : tuple of PassInputs
    targets : TargetInputs or None
        What is to be learnt; None where a chain is only predicted.
    """

    residues: Tensor
    padded_length: int
    aatype: Tensor
    templates: TemplateInputs
    alignment: StoredAlignment
    bounds: Tensor
    passes: tuple[PassInputs, ...]
    targets: TargetInputs | None = None

    def to(self, device: torch.device) -> FeatureInputs:
        """Move all tensors."""
        moved: FeatureInputs = _moved(self, device)
        return moved


def feature_inputs(query: Query, choices: Choices, config: FeaturesConfig) -> FeatureInputs:
    """Collect what features are made from. Tensors share the query's memory where they can.

    Raises
    ------
    InputError
        If the chain has no residues, or the alignment is not the chain's.
    """
    residues = np.arange(choices.window.start, choices.window.stop, dtype=np.int32)
    if len(query) == 0:
        raise InputError(f"{query.name}: has no residues; take it out of the table of chains")
    return FeatureInputs(
        residues=torch.from_numpy(residues),
        padded_length=choices.padded_length,
        aatype=torch.from_numpy(query.aatype[residues]),
        templates=aligned_templates(choices.templates, residues),
        alignment=StoredAlignment.of(query),
        bounds=torch.from_numpy(replacement_bounds(query.msa.profile, config.masked_msa)),
        passes=tuple(
            pass_inputs(len(query.msa.msa), draws, config, key, choices.max_msa_rows)
            for draws, key in zip(choices.msa, choices.dropout_keys, strict=True)
        ),
    )


def pass_inputs(
    num_rows: int,
    draws: MsaDraws,
    config: FeaturesConfig,
    dropout_key: int,
    max_rows: int | None = None,
) -> PassInputs:
    """Choose the rows of a pass; its other decisions stay as they are."""
    fraction = config.block_deletion.fraction_per_block
    choice = choose_rows(num_rows, draws, config.max_msa_clusters, fraction, max_rows)
    num_centres = len(choice.centres)
    return PassInputs(
        centres=torch.from_numpy(choice.centres.astype(np.int32)),
        others=torch.from_numpy(choice.others.astype(np.int32)),
        mask_position=torch.from_numpy(draws.mask_position[:num_centres]),
        mask_symbol=torch.from_numpy(draws.mask_symbol[:num_centres]),
        dropout_key=dropout_key,
    )


def aligned_templates(templates: Sequence[Template], residues: NDArray[np.int32]) -> TemplateInputs:
    """Residues of templates at the query's places; gaps (21) without atoms where there are none.

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
    return TemplateInputs(*map(torch.from_numpy, (aatype, positions, mask)))


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        parts = [_moved(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
