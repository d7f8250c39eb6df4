"""What a shard reader returns: chains, alignments, template hits, samples.

Legend: N residues of the full chain (observed or not), R rows of the stored alignment, D positions
of the alignment with a deletion to their left, K aligned pairs of a template hit. Arrays are the
reader's own copies, never views of a file.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalefold.chem.residues import RESTYPES_WITH_X
from scalefold.raw.alignment import Alignment, profile
from scalefold.raw.chains import Split

Origin = Literal["experimental", "distilled"]
"""Where a structure comes from: an experiment, or an earlier model's prediction."""


@dataclass(frozen=True, eq=False)
class ChainRecord:
    """One chain's sequence and structure.

    Parameters
    ----------
    chain_key
        ``<entry>_<author chain>``.
    label_asym_id, auth_asym_id
        The chain's name as the archive and as the authors have it.
    seq_id
        SHA-256 (32 bytes) of :attr:`sequence`.
    method
        Experimental method in lower case.
    origin
        ``experimental`` or ``distilled``.
    aatype
        ``[N]`` uint8, 0-19 amino acids in AlphaFold2's order, 20 unknown.
    positions
        ``[N, 37, 3]`` float32, Å, zero where there is no atom.
    atom_mask
        ``[N, 37]`` bool, true where an atom was observed.
    resolution
        Å, ``None`` where not stated.
    release_date
        ``None`` where not stated.
    cluster_id
        Sequence cluster, ``None`` where not known.
    confidence
        ``[N]`` float32 per-residue confidence of a distilled structure, otherwise ``None``.
    """

    chain_key: str
    label_asym_id: str
    auth_asym_id: str
    seq_id: bytes
    method: str
    origin: Origin
    aatype: NDArray[np.uint8]
    positions: NDArray[np.float32]
    atom_mask: NDArray[np.bool_]
    resolution: float | None = None
    release_date: datetime.date | None = None
    cluster_id: str | None = None
    confidence: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        """Return the number of residues, observed or not."""
        return len(self.aatype)

    @property
    def sequence(self) -> str:
        """One-letter codes, ``X`` for everything but the 20 amino acids."""
        return "".join(RESTYPES_WITH_X[code] for code in self.aatype)


class PartialChain(ChainRecord):
    """A chain some of whose fields are known. The others are read at first use.

    Most template hits of a sample are too new, or are not drawn: their atoms are never needed.
    """

    @staticmethod
    def of(known: Mapping[str, Any], read: Callable[[], Mapping[str, Any]]) -> PartialChain:
        """Make one.

        Parameters
        ----------
        known : mapping
            Fields by name.
        read : callable
            Returns more of them: ``vars()`` of another chain, which may be partial too. What it
            raises is raised where the chain is looked at.
        """
        chain = object.__new__(PartialChain)
        chain.__dict__.update(known, _read=read)
        return chain

    def __getattribute__(self, name: str) -> Any:
        known = object.__getattribute__(self, "__dict__")
        while name in ChainRecord.__dataclass_fields__ and name not in known:
            known.update(known["_read"]())
        return object.__getattribute__(self, name)


@dataclass(frozen=True, eq=False)
class TemplateHit:
    """A template found for a query, aligned to the template chain's full sequence.

    Parameters
    ----------
    chain_key
        The template chain.
    sum_probs, prob
        HHsearch's sum of posterior probabilities, and probability in percent.
    q_idx, t_idx
        ``[K]`` int32, 0-based positions of the aligned pairs: in the query's sequence, and in the
        template's full sequence (rows of its :class:`ChainRecord`).
    """

    chain_key: str
    sum_probs: float
    prob: float
    q_idx: NDArray[np.int32]
    t_idx: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class MsaRecord:
    """One alignment with its profile.

    Parameters
    ----------
    seq_id
        SHA-256 (32 bytes) of the query's sequence.
    msa
        ``[R, N]`` uint8, AlphaFold2 residue order, 20 unknown, 21 gap; no row twice, query first.
    del_ptr
        ``[R + 1]`` uint32: row ``r``'s deletions are ``del_ptr[r]:del_ptr[r + 1]``.
    del_col, del_val
        ``[D]`` uint16: column, and number of residues deleted to its left.
    row_source
        ``[R]`` uint8, the alignment each row came from: index into
        :data:`scalefold.raw.alignment.ROW_SOURCES`.
    profile
        ``[N, 22]`` float32, frequency of each symbol over the *full* alignment.
    num_seq_full
        Rows of the full alignment; more than ``R`` where rows were cut off.
    """

    seq_id: bytes
    msa: NDArray[np.uint8]
    del_ptr: NDArray[np.uint32]
    del_col: NDArray[np.uint16]
    del_val: NDArray[np.uint16]
    row_source: NDArray[np.uint8]
    profile: NDArray[np.float32]
    num_seq_full: int

    @staticmethod
    def of(seq_id: bytes, full: Alignment, stored: Alignment) -> MsaRecord:
        """Make the record of an alignment, of which the rows of ``stored`` are kept."""
        return MsaRecord(
            seq_id=seq_id,
            msa=stored.msa,
            del_ptr=stored.del_ptr,
            del_col=stored.del_col,
            del_val=stored.del_val,
            row_source=stored.row_source,
            profile=profile(full.msa),
            num_seq_full=len(full),
        )


@dataclass(frozen=True, eq=False)
class Sample:
    """All that features are made from.

    Parameters
    ----------
    templates
        Hits and their structures, by descending ``sum_probs``; none of the target's own entry.
        Dates are not looked at here: which templates are old enough is for the features to say.
    cluster_size
        Number of *training* chains in the chain's cluster (0 is possible outside ``train``).
    """

    chain: ChainRecord
    msa: MsaRecord
    templates: tuple[tuple[TemplateHit, ChainRecord], ...]
    split: Split
    cluster_size: int
