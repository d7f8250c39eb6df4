"""From a stored sample to the features of its recycling passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scalefold.config.schema import FeaturesConfig
from scalefold.errors import InputError
from scalefold.features.alignment import Alignment, Window
from scalefold.features.chain import chain_features
from scalefold.features.contract import Features
from scalefold.features.crop import choose_window, crop, pad
from scalefold.features.draws import DrawKey, draw_msa, draw_sample, dropout_key
from scalefold.features.msa import msa_features
from scalefold.features.random import name_counter
from scalefold.features.templates import (
    Template,
    draw_templates,
    template_features,
    usable_templates,
)
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
        Recycling passes to make; what a pass holds does not depend on which others are made.
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
    key = DrawKey("training", seed, draw)
    draws = draw_sample(key, config.template_pool)
    clamped = draws.clamp < config.clamp_fape_probability
    window = choose_window(
        len(sample.chain),
        config.crop_size,
        draw=config.residue_crop,
        clamped=clamped,
        shift=draws.crop_shift,
        start=draws.crop_start,
    )
    usable = usable_templates(
        sample.templates, sample.chain.release_date, config.template_date_margin_days
    )
    templates = draw_templates(usable, draws, config)
    return _assemble(
        sample, config, key, passes, window, templates, config.crop_size, clamped, True, device
    )


def evaluation_features(
    sample: Sample,
    config: FeaturesConfig,
    seed: int,
    num_passes: int,
    device: torch.device | str = "cpu",
) -> list[Features]:
    """Make the features of a whole chain, as AlphaFold2 does at inference.

    No crop, no block deletion, the best templates in order; BERT masking stays on, redrawn in each
    pass. Decisions depend on the seed and the chain's key alone. MSA rows and template slots are
    padded, residues are not. Targets are included.

    Parameters
    ----------
    sample : Sample
    config : FeaturesConfig
    seed : int
    num_passes : int
        Recycling passes, the last one included.
    device : torch.device or str

    Returns
    -------
    list of dict
        For each pass a feature dictionary with B = 1.

    Raises
    ------
    InputError
        If the sample cannot be used; names the chain.
    """
    chain = sample.chain
    usable = usable_templates(
        sample.templates, chain.release_date, config.template_date_margin_days
    )
    return _assemble(
        sample,
        config,
        DrawKey("evaluation", seed, name_counter(chain.chain_key)),
        range(num_passes),
        Window(0, len(chain)),
        usable[: config.max_templates],
        len(chain),
        True,
        False,
        device,
    )


def collate(samples: Sequence[Features]) -> Features:
    """Join samples of equal shapes along the batch dimension."""
    if len(samples) == 1:
        return samples[0]
    first = samples[0]
    for other in samples[1:]:
        for name, tensor in first.items():
            if name not in other or other[name].shape[1:] != tensor.shape[1:]:
                found = tuple(other[name].shape) if name in other else "nothing"
                raise InputError(
                    f"cannot batch feature {name!r}: {tuple(tensor.shape)} with {found}; samples "
                    "of one batch must be padded to the same sizes"
                )
    return {name: torch.cat([features[name] for features in samples]) for name in first}


def _assemble(
    sample: Sample,
    config: FeaturesConfig,
    key: DrawKey,
    passes: Sequence[int],
    window: Window,
    templates: Sequence[Template],
    padded_length: int,
    clamped: bool,
    delete_blocks: bool,
    device: torch.device | str,
) -> list[Features]:
    device = torch.device(device)
    sizes = {
        "N": padded_length,
        "S": config.max_msa_clusters,
        "E": config.max_extra_msa,
        "T": config.max_templates,
    }
    chain, num_res = sample.chain, len(sample.chain)
    whole = {
        **chain_features(chain, clamped, device),
        **template_features(templates, num_res, device),
    }
    shared = _batched(pad(crop(whole, window), sizes))
    alignment = Alignment.from_record(sample.msa, chain, device)
    msa_draws = [
        draw_msa(
            key,
            pass_index,
            num_rows=len(alignment.symbols),
            num_clusters=min(config.max_msa_clusters, len(alignment.symbols)),
            num_res=num_res,
            block_deletion=config.block_deletion if delete_blocks else None,
        )
        for pass_index in passes
    ]
    per_pass = msa_features(alignment, msa_draws, window, config)
    return [
        {
            **shared,
            **_batched(pad(features, sizes)),
            "dropout_key": torch.tensor([dropout_key(key, pass_index)], device=device),
        }
        for pass_index, features in zip(passes, per_pass)
    ]


def _batched(features: Features) -> Features:
    return {name: tensor[None] for name, tensor in features.items()}
