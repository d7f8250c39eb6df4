"""From a stored sample, or a query alone, to the features of its recycling passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scalefold.config.schema import FeaturesConfig
from scalefold.features.choices import Choices, prediction_choices, training_choices
from scalefold.features.contract import INPUT_FEATURES, Features
from scalefold.features.crop import pad
from scalefold.features.inputs import FeatureInputs, feature_inputs
from scalefold.features.msa import msa_features
from scalefold.features.query import Query
from scalefold.features.sequence import sequence_features
from scalefold.features.targets import target_features, target_inputs
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
    sample : Sample
    config : FeaturesConfig
    seed : int
        Seed of the run.
    draw : int
        Index of the draw in the run; with the seed it fixes all random decisions.
    passes : sequence of int
        Recycling passes to make. A pass does not depend on which others are made.
    device : torch.device or str

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
    return make_features(
        sample, training_choices(sample, config, seed, draw, passes), config, device
    )


def prediction_features(
    query: Query,
    config: FeaturesConfig,
    seed: int,
    num_passes: int,
    device: torch.device | str = "cpu",
) -> list[Features]:
    """Make the features of a whole chain, as AlphaFold2 does at inference.

    No crop, no block deletion, the best templates in order; BERT masking stays on, redrawn in each
    pass. Decisions depend on the seed and the query's name alone. MSA rows and template slots are
    padded, residues are not.

    Parameters
    ----------
    query : Query
    config : FeaturesConfig
    seed : int
    num_passes : int
        Recycling passes, the last one included.
    device : torch.device or str

    Returns
    -------
    list of dict
        For each pass what the model reads, with B = 1. Targets are not among it.

    Raises
    ------
    InputError
        If the query cannot be used; names the chain.
    """
    inputs = feature_inputs(query, prediction_choices(query, config, seed, num_passes), config)
    return features_of(inputs.to(torch.device(device)), config, num_passes)


def make_features(
    sample: Sample, choices: Choices, config: FeaturesConfig, device: torch.device | str = "cpu"
) -> list[Features]:
    """Carry out the choices: no randomness here. See :func:`training_features`."""
    inputs = training_inputs(sample, choices, config)
    return features_of(inputs.to(torch.device(device)), config, len(inputs.passes))


def training_inputs(sample: Sample, choices: Choices, config: FeaturesConfig) -> FeatureInputs:
    """Collect what features and targets are made from.

    Raises
    ------
    InputError
        If the chain has no observed atom; see also `feature_inputs`.
    """
    targets = target_inputs(sample.chain, choices, config.distilled.min_plddt)
    return feature_inputs(Query.of(sample), choices, config)._replace(targets=targets)


def features_of(inputs: FeatureInputs, config: FeaturesConfig, num_passes: int) -> list[Features]:
    """Make the features of the first passes, on the device that the inputs are on.

    On a GPU, all work is queued on the current stream and nothing waits for it.

    Parameters
    ----------
    inputs : FeatureInputs
    config : FeaturesConfig
    num_passes : int
        Passes that will be used, at most those of the inputs.

    Returns
    -------
    list of dict
        As :func:`training_features`; without targets, as :func:`prediction_features`.
    """
    passes = inputs.passes[:num_passes]
    sizes = {
        "N": inputs.padded_length,
        "S": config.max_msa_clusters,
        "E": config.max_extra_msa,
        "T": config.max_templates,
    }
    aatype, residues = inputs.aatype.long(), inputs.residues.long()
    shared = {
        **sequence_features(aatype, residues),
        **template_features(inputs.templates),
    }
    per_pass = msa_features(inputs.alignment.unpack(), inputs.bounds, passes, residues, config)
    if inputs.targets is not None:
        shared |= target_features(aatype, inputs.targets)
    else:
        per_pass = [_read_by_the_model(features) for features in per_pass]
    shared = _batched(pad(shared, sizes))
    return [
        {
            **shared,
            **_batched(pad(features, sizes)),
            "dropout_key": torch.full((1,), part.dropout_key, device=inputs.bounds.device),
        }
        for features, part in zip(per_pass, passes)
    ]


def _read_by_the_model(features: Features) -> Features:
    return {name: tensor for name, tensor in features.items() if name in INPUT_FEATURES}


def _batched(features: Features) -> Features:
    return {name: tensor[None] for name, tensor in features.items()}
