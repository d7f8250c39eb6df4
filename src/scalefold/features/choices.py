"""The choices for a sample, random and configured, made before any tensor is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalefold.config.schema import FeaturesConfig
from scalefold.features.alignment import Window
from scalefold.features.crop import choose_window
from scalefold.features.draws import DrawKey, MsaDraws, draw_msa, draw_sample, dropout_key
from scalefold.features.query import Query
from scalefold.features.random import name_counter
from scalefold.features.templates import Template, draw_templates, usable_templates
from scalefold.shards.records import MsaRecord, Sample


@dataclass(frozen=True, eq=False)
class Choices:
    """Choices for one sample.

    Attributes
    ----------
    window : Window
        Residues that are used, in all passes.
    padded_length : int
        Residues to pad to.
    templates : tuple of (TemplateHit, ChainRecord)
        Templates that are used, in this order.
    clamped : bool
        Clamp the backbone FAPE.
    msa : tuple of MsaDraws
        Decisions of each pass.
    dropout_keys : tuple of int
        Key of each pass's dropout masks.
    max_msa_rows : int or None
        Rows that are drawn of the alignment; None: all.
    """

    window: Window
    padded_length: int
    templates: tuple[Template, ...]
    clamped: bool
    msa: tuple[MsaDraws, ...]
    dropout_keys: tuple[int, ...]
    max_msa_rows: int | None = None


def training_choices(
    sample: Sample, config: FeaturesConfig, seed: int, draw: int, passes: Sequence[int]
) -> Choices:
    """Decide on a training sample: a pure function of (seed, draw, pass)."""
    key = DrawKey("training", seed, draw)
    draws = draw_sample(key, config.template_pool)
    distilled = sample.chain.origin == "distilled"
    clamped = draws.clamp < config.clamp_fape_probability
    templates = usable_templates(
        sample.templates,
        sample.chain.release_date,
        config.template_date_margin_days,
        config.template_pool,
    )
    return Choices(
        window=choose_window(
            len(sample.chain),
            config.crop_size,
            draw=config.residue_crop,
            clamped=clamped,
            shift=draws.crop_shift,
            start=draws.crop_start,
        ),
        padded_length=config.crop_size,
        templates=tuple(draw_templates(templates, draws, config)),
        clamped=clamped,
        msa=_draw_passes(
            key, sample.msa, config, passes, delete_blocks=config.block_deletion.enabled
        ),
        dropout_keys=tuple(dropout_key(key, pass_index) for pass_index in passes),
        max_msa_rows=config.distilled.max_msa_rows if distilled else None,
    )


def prediction_choices(query: Query, config: FeaturesConfig, seed: int, num_passes: int) -> Choices:
    """Decide on a chain to predict: a pure function of (seed, the query's name, pass)."""
    key = DrawKey("evaluation", seed, name_counter(query.name))
    passes = range(num_passes)
    templates = usable_templates(
        query.templates,
        query.release_date,
        config.template_date_margin_days,
        config.max_templates,
    )
    return Choices(
        window=Window(0, len(query)),
        padded_length=len(query),
        templates=tuple(templates),
        clamped=True,
        msa=_draw_passes(key, query.msa, config, passes, delete_blocks=False),
        dropout_keys=tuple(dropout_key(key, pass_index) for pass_index in passes),
    )


def _draw_passes(
    key: DrawKey,
    msa: MsaRecord,
    config: FeaturesConfig,
    passes: Sequence[int],
    *,
    delete_blocks: bool,
) -> tuple[MsaDraws, ...]:
    num_rows, num_res = msa.msa.shape
    return tuple(
        draw_msa(
            key,
            pass_index,
            num_rows=num_rows,
            num_clusters=min(config.max_msa_clusters, num_rows),
            num_res=num_res,
            block_deletion=config.block_deletion if delete_blocks else None,
        )
        for pass_index in passes
    )
