"""What several sources say of each chain that may be listed."""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from scalefold.raw.chain_key import entry_of, is_chain_key, short_form
from scalefold.raw.own_structures import MAX_RESIDUES


@dataclass(slots=True)
class Candidate:
    """A chain, and what a source says of it; ``None`` is unknown.

    Parameters
    ----------
    chain_key
        ``<entry>_<author chain>``.
    entity
        Number of the polymer entity in its entry.
    label
        The archive's name of the chain (label_asym_id); several are joined by semicolons.
    release_date, method
        Of the entry.
    resolution
        Of the entry, Å.
    num_observed
        Residues with atoms.
    listed
        Whether it may be listed. Other chains only help to find entities.
    """

    chain_key: str
    sequence: str | None = None
    entity: str | None = None
    label: str | None = None
    release_date: datetime.date | None = None
    resolution: float | None = None
    method: str | None = None
    cluster: str | None = None
    num_observed: int | None = None
    listed: bool = False

    @property
    def entry_id(self) -> str:
        """Lower-case entry id."""
        return entry_of(self.chain_key)

    @property
    def is_mostly_unobserved(self) -> bool:
        """Whether fewer than half of its residues are known to have atoms."""
        if self.sequence is None or self.num_observed is None:
            return False
        return 2 * self.num_observed < len(self.sequence)

    @property
    def marks(self) -> tuple[str, ...]:
        """The cluster and the sequence, which must not be on both sides of a split."""
        known = tuple(text for text in (self.cluster, self.sequence) if text is not None)
        return known or (self.chain_key,)

    def fill(self, other: Candidate) -> None:
        """Take unknown facts from another source."""
        self.sequence = self.sequence or other.sequence
        self.entity = self.entity or other.entity
        self.label = self.label or other.label
        self.release_date = self.release_date or other.release_date
        self.resolution = self.resolution or other.resolution
        self.method = self.method or other.method
        self.cluster = self.cluster or other.cluster
        self.num_observed = self.num_observed or other.num_observed


class SkippedEntries:
    """Entries of the sources that were skipped: counted, with the first of each kind."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def add(self, what: str, example: str) -> None:
        """Count one more of a kind."""
        self._counts[what] = self._counts.get(what, 0) + 1
        self._first.setdefault(what, example)

    def __iter__(self) -> Iterator[str]:
        """Give one line a kind."""
        for what, count in self._counts.items():
            yield f"{what}: {count:,}, first {self._first[what]}"


class Candidates:
    """All chains that the sources name, by key."""

    def __init__(self) -> None:
        self._chains: dict[str, Candidate] = {}
        self._texts: dict[str, str] = {}
        self.notes = SkippedEntries()

    def __iter__(self) -> Iterator[Candidate]:
        """Give the chains that may be listed."""
        return (chain for chain in self._chains.values() if chain.listed)

    def drop(self, entries: Collection[str]) -> int:
        """Remove the chains of some entries; return how many could have been listed."""
        gone = [chain for chain in self._chains.values() if chain.entry_id in entries]
        for chain in gone:
            del self._chains[chain.chain_key]
        return sum(chain.listed for chain in gone)

    def forget_clusters(self) -> None:
        """Remove the sources' clusters, so that others can be set."""
        for chain in self._chains.values():
            chain.cluster = None

    def everything(self) -> Iterable[Candidate]:
        """All chains, also those that may not be listed."""
        return self._chains.values()

    def add(self, chains: Iterable[Candidate], source: str, *, listed: bool) -> int:
        """Add a source's chains, and return their number. Facts of earlier sources stay."""
        count = 0
        for chain in chains:
            chain.chain_key = short_form(chain.chain_key)
            if not is_chain_key(chain.chain_key):
                self.notes.add(f"{source}: no name of a chain", repr(chain.chain_key[:80]))
                continue
            count += 1
            if chain.sequence is not None:
                chain.sequence = self._checked(chain, source)
            chain.listed = listed
            known = self._chains.setdefault(chain.chain_key, chain)
            if known is not chain:
                known.fill(chain)
                known.listed |= listed
        return count

    def _checked(self, chain: Candidate, source: str) -> str | None:
        """Return the sequence, one object for equal ones, ``None`` for what is no sequence."""
        text = (chain.sequence or "").upper()
        if not (text.isascii() and text.isalpha()):
            self.notes.add(f"{source}: sequences that hold other than letters", chain.chain_key)
            return None
        if len(text) > MAX_RESIDUES:
            self.notes.add(f"{source}: sequences of more than {MAX_RESIDUES:,}", chain.chain_key)
            return None
        return self._texts.setdefault(text, text)


@functools.cache
def date_of(text: str) -> datetime.date | None:
    """Return the date of ``YYYY-MM-DD``, ``None`` of anything else."""
    try:
        return datetime.date.fromisoformat(text[:10])
    except ValueError:
        return None


def resolution_of(value: object) -> float | None:
    """Return a resolution in Å. Caches write 0 and other values if there is none."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number > 0.0 else None
