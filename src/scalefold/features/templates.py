"""Which template hits are used (Suppl. sec. 1.2.3).

The shards hold the hits that pass AlphaFold2's sequence filters. Dates and observed atoms are
checked here.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from scalefold.config.schema import FeaturesConfig
from scalefold.features.random import integers_below
from scalefold.features.sample_random import SampleRandom
from scalefold.shards.records import ChainRecord, TemplateHit

Template = tuple[TemplateHit, ChainRecord]

MIN_TEMPLATE_ATOMS = 5
"""Aligned, observed atoms that a template must have: those of one alanine."""


def usable_templates(
    templates: Iterable[Template], query_date: datetime.date | None, margin_days: int, most: int
) -> list[Template]:
    """Drop templates that are too new or have no structure where they are aligned.

    Parameters
    ----------
    templates : iterable of (TemplateHit, ChainRecord)
        By descending ``sum_probs``. A structure is read only if it is old enough and comes
        before the last one that is returned.
    query_date : date or None
        Release date of the query. If it is unknown, no template is used. A template without a date
        is not used either.
    margin_days : int
        A template must have been released at least this many days before the query.
    """
    if query_date is None:
        return []
    newest = query_date - datetime.timedelta(days=margin_days)
    usable = (
        (hit, chain)
        for hit, chain in templates
        if chain.release_date is not None
        and chain.release_date <= newest
        and int(chain.atom_mask[hit.t_idx].sum()) >= MIN_TEMPLATE_ATOMS
    )
    return list(itertools.islice(usable, most))


def select_templates(
    templates: Sequence[Template], random: SampleRandom, config: FeaturesConfig
) -> list[Template]:
    """Select the templates of a training sample.

    Of the best ``n <= template_pool`` hits a random ``k`` are taken in random order;
    ``k = min(U{0..n}, max_templates)`` (alphafold), or ``U{0..min(n, max_templates)}`` (mlperf).
    """
    n = min(len(templates), config.template_pool)
    most = n if config.template_draw == "alphafold" else min(n, config.max_templates)
    count = int(integers_below(np.asarray([random.template_count]), most + 1)[0])
    order = random.template_order[random.template_order < n]
    return [templates[rank] for rank in order[: min(count, config.max_templates)]]
