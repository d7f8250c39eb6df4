"""Chains of one sequence share an alignment. Mirrors have it under the name of one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from scalefold.config.data import DataConfig
from scalefold.raw.chain_key import is_chain_key
from scalefold.raw.chains import ChainRow
from scalefold.raw.compressed import read_lines


class SharedAlignments:
    """Which chain asks for an alignment that chains share, and by which names.

    Of the chains in a line, the first that is listed and not just a template asks for all. Packing
    gives its alignment to the others, since they have the same sequence.

    Parameters
    ----------
    path
        OpenProteinSet's ``duplicate_pdb_chains.txt``: for each sequence a line with the names of
        its chains. Other words are skipped.
    chains
        The whole list of chains.

    Raises
    ------
    InputError
        The file cannot be read.
    """

    def __init__(self, path: Path, chains: Iterable[ChainRow]) -> None:
        listed = {row.chain_key for row in chains if row.split != "template"}
        self._names: dict[str, Sequence[str]] = {}
        for line in read_lines(path):
            names = tuple(filter(is_chain_key, line.split()))
            for number, chain_key in enumerate(filter(listed.__contains__, names)):
                self._names[chain_key] = () if number else names

    @staticmethod
    def of(data: DataConfig, chains: Iterable[ChainRow]) -> SharedAlignments | None:
        """Read `data.duplicates`; None where it is not set."""
        return None if data.duplicates is None else SharedAlignments(data.duplicates, chains)

    def names(self, chain_key: str) -> Sequence[str]:
        """Return the names to ask for a chain's alignments by, none where another chain asks."""
        return self._names.get(chain_key, (chain_key,))
