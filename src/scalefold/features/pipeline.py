"""From a stored sample, or a query alone, to the features of its recycling passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.config.schema import FeaturesConfig
from scalefold.features.atoms import atom_layout
from scalefold.features.contract import INPUT_FEATURES, Features
from scalefold.features.msa_features import msa_features
from scalefold.features.padding import pad
from scalefold.features.query import Query
from scalefold.features.raw_features import RawFeatures, raw_features
from scalefold.features.selection import Selection, prediction_selection, training_selection
from scalefold.features.targets import raw_targets, target_features
from scalefold.features.template_features import template_features
from scalefold.shards.records import Sample


def training_features(
    sample: Sample,
    config: FeaturesConfig,
    seed: int,
    draw: int,
    passes: Sequence[int],
    device: torch.device | str = "cpu",
) -> list[Features]:
    """Make the features of one training sample, cropped and padded to fixed shapes.

    Parameters
    ----------
    draw : int
        Index of the draw in the run. It fixes all random numbers together with the seed.
    passes : sequence of int
        Recycling passes to make. A pass does not depend on which others are made.

    Returns
    -------
    list of dict
        For each pass a feature dictionary with B = 1; passes share the tensors of the sample
        features.

    Raises
    ------
    InputError
        If the sample cannot be used; names the chain.
    """
    selection = training_selection(sample, config, seed, draw, passes)
    return selected_features(sample, selection, config, device)


def prediction_features(
    query: Query,
    config: FeaturesConfig,
    seed: int,
    num_passes: int,
    device: torch.device | str = "cpu",
) -> list[Features]:
    """Make the features of a whole chain, as AlphaFold2 does at inference.

    There is no crop and no block deletion, and the best templates are taken in order. BERT masking
    stays on, with other random numbers in each pass; they depend on the seed and the query's name
    alone. MSA rows and template slots are padded, residues are not.

    Parameters
    ----------
    num_passes : int
        Recycling passes, the last one included.

    Returns
    -------
    list of dict
        For each pass what the model reads, with B = 1, without targets.

    Raises
    ------
    InputError
        If the query cannot be used; names the chain.
    """
    raw = raw_features(query, prediction_selection(query, config, seed, num_passes), config)
    return features_of(raw.to(torch.device(device)), config, num_passes)


def selected_features(
    sample: Sample, selection: Selection, config: FeaturesConfig, device: torch.device | str = "cpu"
) -> list[Features]:
    """Make the features of a given selection. See :func:`training_features`."""
    raw = raw_training_features(sample, selection, config)
    return features_of(raw.to(torch.device(device)), config, len(raw.passes))


def raw_training_features(
    sample: Sample, selection: Selection, config: FeaturesConfig
) -> RawFeatures:
    """Collect what features and targets are made from.

    Raises
    ------
    InputError
        If the chain has no observed atom; see also `raw_features`.
    """
    targets = raw_targets(sample.chain, selection, config.distilled.min_plddt)
    return raw_features(Query.of(sample), selection, config)._replace(targets=targets)


def features_of(raw: RawFeatures, config: FeaturesConfig, num_passes: int) -> list[Features]:
    """Make the features of the first passes, on the device of the raw features.

    On a GPU, all work is queued on the current stream and nothing waits for it.

    Parameters
    ----------
    num_passes : int
        Passes that will be used, at most those of ``raw``.

    Returns
    -------
    list of dict
        As :func:`training_features`; without targets, as :func:`prediction_features`.
    """
    passes = raw.passes[:num_passes]
    sizes = {
        "N": raw.padded_length,
        "S": config.max_msa_clusters,
        "E": config.max_extra_msa,
        "T": config.max_templates,
    }
    aatype, residues = raw.aatype.long(), raw.residues.long()
    shared = {**_sequence_features(aatype, residues), **template_features(raw.templates)}
    per_pass = msa_features(raw.msa.unpack(), raw.bounds, passes, residues, config)
    if raw.targets is not None:
        shared |= target_features(aatype, raw.targets)
    else:
        per_pass = [_read_by_the_model(features) for features in per_pass]
    shared = pad(_batched(shared), sizes)
    return [
        {
            **shared,
            **pad(_batched(features), sizes),
            "dropout_key": torch.full((1,), part.dropout_key, device=raw.bounds.device),
        }
        for features, part in zip(per_pass, passes)
    ]


def _sequence_features(aatype: Tensor, residues: Tensor) -> Features:
    # the first channel marks domain breaks, which single chains do not have
    target_feat = functional.pad(functional.one_hot(aatype, 21).float(), (1, 0))
    return {
        "aatype": aatype,
        "residue_index": residues,
        "seq_mask": torch.ones(len(residues), device=residues.device),
        "target_feat": target_feat,
        **atom_layout(aatype),
    }


def _read_by_the_model(features: Features) -> Features:
    return {name: tensor for name, tensor in features.items() if name in INPUT_FEATURES}


def _batched(features: Features) -> Features:
    return {name: tensor[None] for name, tensor in features.items()}
