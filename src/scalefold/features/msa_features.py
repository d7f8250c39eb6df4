"""Features of one pass over an alignment: clustered rows and extra rows (Suppl. Table 1).

The order of the steps matters: block deletion and cluster centres (``msa_rows.py``), masking,
clustering of all other rows over the full length, then the residue crop. Cluster profiles are made
of the cropped columns alone: columns do not mix there, so the result is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.config.schema import FeaturesConfig
from scalefold.features.contract import Features
from scalefold.features.masking import mask_msa
from scalefold.features.msa_clusters import (
    NUM_SYMBOLS,
    count_each,
    nearest_centres,
    summarize_clusters,
    symbol_counts,
)
from scalefold.features.packed_msa import Msa, deletion_matrix, deletion_sums
from scalefold.features.raw_features import RawPass


def msa_features(
    msa: Msa, bounds: Tensor, passes: Sequence[RawPass], columns: Tensor, config: FeaturesConfig
) -> list[Features]:
    """Make the features of several passes over one alignment.

    Parameters
    ----------
    bounds : Tensor, shape (N, 22), float32
        Of `scalefold.features.masking.replacement_bounds`.
    columns : Tensor, shape (M,), int64
        Residues of the crop; the same in all passes.

    Returns
    -------
    list of dict
        For each pass, unbatched and unpadded: ``msa_feat``, ``msa_mask``, ``true_msa``,
        ``bert_mask``, ``extra_msa``, ``extra_has_deletion``, ``extra_deletion_value``,
        ``extra_msa_mask``.
    """
    centres = [part.centres.long() for part in passes]
    others = [part.others.long() for part in passes]
    masked, chosen = [], []
    for rows, part in zip(centres, passes):
        symbols, positions = mask_msa(
            msa.symbols[rows], bounds, part.mask_position, part.mask_symbol, config.masked_msa
        )
        masked.append(symbols)
        chosen.append(positions)
    nearest = _nearest(msa, masked, others)
    return [
        _pass_features(msa, *parts, columns, config.max_extra_msa)
        for parts in zip(centres, others, masked, chosen, nearest)
    ]


def deletion_value(deletions: Tensor) -> Tensor:
    """Squash deletion counts to [0, 1): 2/pi atan(d / 3) (Suppl. Table 1)."""
    return torch.atan(deletions / 3.0) * (2.0 / math.pi)


def _nearest(msa: Msa, masked: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Cluster of each of the other rows, pass by pass."""
    if not any(len(rows) for rows in others):
        return [rows.new_zeros(0) for rows in others]
    # Passes share the one-hot encoding of the rows. One with rows left has all centres.
    stacked = torch.stack([symbols for symbols, rows in zip(masked, others) if len(rows)])
    nearest = iter(nearest_centres(msa.symbols, stacked))
    return [next(nearest)[rows] if len(rows) else rows for rows in others]


def _pass_features(
    msa: Msa,
    centres: Tensor,
    others: Tensor,
    masked: Tensor,
    chosen: Tensor,
    cluster: Tensor,
    columns: Tensor,
    max_extra: int,
) -> Features:
    symbols = msa.symbols[:, columns]
    masked = masked[:, columns]
    num_clusters = len(centres)

    group = others.new_full((len(symbols),), -1)
    group[others] = cluster
    centre_deletions = deletion_matrix(msa, centres, columns)
    profile, deletion_mean = summarize_clusters(
        masked,
        centre_deletions,
        symbol_counts(symbols[others], cluster, num_clusters),
        deletion_sums(msa, group, num_clusters, columns),
        count_each(cluster, num_clusters),
    )
    extra = others[:max_extra]
    extra_deletions = deletion_matrix(msa, extra, columns)
    return {
        "msa_feat": torch.cat(
            [
                functional.one_hot(masked.long(), NUM_SYMBOLS).float(),
                centre_deletions.clamp(0.0, 1.0)[..., None],
                deletion_value(centre_deletions)[..., None],
                profile,
                deletion_value(deletion_mean)[..., None],
            ],
            -1,
        ),
        "msa_mask": torch.ones_like(centre_deletions),
        "true_msa": symbols[centres].long(),
        "bert_mask": chosen[:, columns].float(),
        "extra_msa": symbols[extra].long(),
        "extra_has_deletion": extra_deletions.clamp(0.0, 1.0),
        "extra_deletion_value": deletion_value(extra_deletions),
        "extra_msa_mask": torch.ones_like(extra_deletions),
    }
