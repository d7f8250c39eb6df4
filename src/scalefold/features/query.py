"""A chain to predict, without its own structure."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalefold.features.templates import Template
from scalefold.shards.records import MsaRecord, Sample


@dataclass(frozen=True, eq=False)
class Query:
    """A chain to predict; N residues.

    Attributes
    ----------
    name : str
        The prediction's random numbers depend on it.
    aatype : ndarray, shape (N,), uint8
        0-19 amino acids, 20 unknown.
    msa : MsaRecord
        Its alignment.
    templates : tuple of (TemplateHit, ChainRecord)
        By descending ``sum_probs``.
    release_date : date or None
        Templates must be older. If it is unknown, none is used.
    """

    name: str
    aatype: NDArray[np.uint8]
    msa: MsaRecord
    templates: tuple[Template, ...] = ()
    release_date: datetime.date | None = None

    def __len__(self) -> int:
        """Return the number of residues."""
        return len(self.aatype)

    @staticmethod
    def of(sample: Sample) -> Query:
        """Return a stored chain without its structure."""
        chain = sample.chain
        return Query(
            chain.chain_key, chain.aatype, sample.msa, sample.templates, chain.release_date
        )
