"""Which residues and templates of a sample are used, and the random numbers of its passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalefold.config.schema import FeaturesConfig
from scalefold.features.crop import Crop, random_crop
from scalefold.features.query import Query
from scalefold.features.random import name_counter
from scalefold.features.sample_random import (
    MsaRandom,
    RandomKey,
    dropout_key,
    msa_random,
    sample_random,
)
from scalefold.features.templates import Template, select_templates, usable_templates
from scalefold.shards.records import MsaRecord, Sample


@dataclass(frozen=True, eq=False)
class Selection:
    """What the features of one sample use.

    Attributes
    ----------
    crop : Crop
        Residues, in all passes.
    templates : tuple of (TemplateHit, ChainRecord)
        In this order.
    max_msa_rows : int or None
        Rows of the alignment, taken at random; None: all.
    """

    crop: Crop
    padded_length: int
    templates: tuple[Template, ...]
    clamped: bool
    msa: tuple[MsaRandom, ...]
    dropout_keys: tuple[int, ...]
    max_msa_rows: int | None = None


def training_selection(
    sample: Sample, config: FeaturesConfig, seed: int, draw: int, passes: Sequence[int]
) -> Selection:
    """Select for a training sample: a pure function of (seed, draw, pass)."""
    key = RandomKey("training", seed, draw)
    random = sample_random(key, config.template_pool)
    distilled = sample.chain.origin == "distilled"
    clamped = random.clamp < config.clamp_fape_probability
    templates = usable_templates(
        sample.templates,
        sample.chain.release_date,
        config.template_date_margin_days,
        config.template_pool,
    )
    return Selection(
        crop=random_crop(
            len(sample.chain),
            config.crop_size,
            draw=config.residue_crop,
            clamped=clamped,
            shift=random.crop_shift,
            start=random.crop_start,
        ),
        padded_length=config.crop_size,
        templates=tuple(select_templates(templates, random, config)),
        clamped=clamped,
        msa=_random_passes(
            key, sample.msa, config, passes, delete_blocks=config.block_deletion.enabled
        ),
        dropout_keys=tuple(dropout_key(key, pass_index) for pass_index in passes),
        max_msa_rows=config.distilled.max_msa_rows if distilled else None,
    )


def prediction_selection(
    query: Query, config: FeaturesConfig, seed: int, num_passes: int
) -> Selection:
    """Select for a chain to predict: a pure function of (seed, the query's name, pass)."""
    key = RandomKey("evaluation", seed, name_counter(query.name))
    passes = range(num_passes)
    templates = usable_templates(
        query.templates, query.release_date, config.template_date_margin_days, config.max_templates
    )
    return Selection(
        crop=Crop(0, len(query)),
        padded_length=len(query),
        templates=tuple(templates),
        clamped=True,
        msa=_random_passes(key, query.msa, config, passes, delete_blocks=False),
        dropout_keys=tuple(dropout_key(key, pass_index) for pass_index in passes),
    )


def _random_passes(
    key: RandomKey,
    msa: MsaRecord,
    config: FeaturesConfig,
    passes: Sequence[int],
    *,
    delete_blocks: bool,
) -> tuple[MsaRandom, ...]:
    num_rows, num_res = msa.msa.shape
    return tuple(
        msa_random(
            key,
            pass_index,
            num_rows=num_rows,
            num_clusters=min(config.max_msa_clusters, num_rows),
            num_res=num_res,
            block_deletion=config.block_deletion if delete_blocks else None,
        )
        for pass_index in passes
    )
