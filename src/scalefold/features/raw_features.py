"""Raw features: what features are made from, as plain tensors, after crop and selection of rows.

They are collected where the sample is read, and can be sent to another process and to a GPU. There
`scalefold.features.pipeline.features_of` makes the features without waiting for the host, since
each number that a shape depends on is a Python number.

Legend: N residues of the chain, M of the crop, R alignment rows, S cluster centres, K rows that are
clustered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scalefold.config.schema import FeaturesConfig
from scalefold.errors import InputError
from scalefold.features.masking import replacement_bounds
from scalefold.features.msa_rows import select_rows
from scalefold.features.packed_msa import PackedMsa
from scalefold.features.query import Query
from scalefold.features.sample_random import MsaRandom
from scalefold.features.selection import Selection
from scalefold.features.targets import RawTargets
from scalefold.features.template_features import RawTemplates, align_templates


class RawPass(NamedTuple):
    """Rows and random numbers of one recycling pass.

    Attributes
    ----------
    centres : Tensor, shape (S,), int32
        Rows that are cluster centres, the query first.
    others : Tensor, shape (K,), int32
        Rows that are clustered; the first of them are the extra rows.
    mask_position, mask_symbol : Tensor, shape (S, N), float32
        Uniform in [0, 1).
    """

    centres: Tensor
    others: Tensor
    mask_position: Tensor
    mask_symbol: Tensor
    dropout_key: int


class RawFeatures(NamedTuple):
    """What a chain's features are made from.

    Attributes
    ----------
    residues : Tensor, shape (M,), int32
        Indices in the chain.
    aatype : Tensor, shape (M,), uint8
        Types of these residues.
    msa : PackedMsa
        All rows, full length.
    bounds : Tensor, shape (N, 22), float32
        Of `scalefold.features.masking.replacement_bounds`.
    targets : RawTargets or None
        None if the chain is only predicted.
    """

    residues: Tensor
    padded_length: int
    aatype: Tensor
    templates: RawTemplates
    msa: PackedMsa
    bounds: Tensor
    passes: tuple[RawPass, ...]
    targets: RawTargets | None = None

    def to(self, device: torch.device) -> RawFeatures:
        """Move all tensors."""
        moved: RawFeatures = _moved(self, device)
        return moved


def raw_features(query: Query, selection: Selection, config: FeaturesConfig) -> RawFeatures:
    """Collect what features are made from. Tensors share the query's memory if they can.

    Raises
    ------
    InputError
        If the chain has no residues, or the alignment is not the chain's.
    """
    residues = np.arange(selection.crop.start, selection.crop.stop, dtype=np.int32)
    if len(query) == 0:
        raise InputError(f"{query.name}: has no residues; take it out of the table of chains")
    return RawFeatures(
        residues=torch.from_numpy(residues),
        padded_length=selection.padded_length,
        aatype=torch.from_numpy(query.aatype[residues]),
        templates=align_templates(selection.templates, residues),
        msa=PackedMsa.of(query),
        bounds=torch.from_numpy(replacement_bounds(query.msa.profile, config.masked_msa)),
        passes=tuple(
            raw_pass(len(query.msa.msa), random, config, key, selection.max_msa_rows)
            for random, key in zip(selection.msa, selection.dropout_keys, strict=True)
        ),
    )


def raw_pass(
    num_rows: int,
    random: MsaRandom,
    config: FeaturesConfig,
    dropout_key: int,
    max_rows: int | None = None,
) -> RawPass:
    """Select the rows of a pass, and take its random numbers."""
    fraction = config.block_deletion.fraction_per_block
    rows = select_rows(num_rows, random, config.max_msa_clusters, fraction, max_rows)
    num_centres = len(rows.centres)
    return RawPass(
        centres=torch.from_numpy(rows.centres.astype(np.int32)),
        others=torch.from_numpy(rows.others.astype(np.int32)),
        mask_position=torch.from_numpy(random.mask_position[:num_centres]),
        mask_symbol=torch.from_numpy(random.mask_symbol[:num_centres]),
        dropout_key=dropout_key,
    )


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        parts = [_moved(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
