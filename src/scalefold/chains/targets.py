"""A given list of validation chains: keys, or CAMEO's targets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from scalefold.chains.candidates import Candidate
from scalefold.errors import InputError
from scalefold.raw.chain_key import is_chain_key
from scalefold.raw.compressed import read_lines

_CAMEO: Final = re.compile(r"\b([0-9a-z]{4}) \[([A-Za-z0-9]+)\]")


def read_validation(path: Path, candidates: Iterable[Candidate]) -> frozenset[str]:
    """Read the keys of chains, one a line, or targets such as ``7bgg [A]`` anywhere in a text.

    CAMEO names chains as the archive does (label_asym_id), now and then as the authors do: the
    first counts where a source says these names (MLPerf HPC's reference does so, too).

    Raises
    ------
    InputError
        The file cannot be read, or names no chain.
    """
    keys: set[str] = set()
    targets: set[str] = set()
    for line in read_lines(path):
        targets.update(f"{entry}_{chain}" for entry, chain in _CAMEO.findall(line))
        first = line.split()[:1]
        keys.update(key for key in first if is_chain_key(key))
    if not keys and not targets:
        raise InputError(
            f"{path}: names no chain. Expected keys such as 7bgg_A, one a line, or CAMEO's targets "
            "such as 7bgg [A]"
        )
    of_label = {
        f"{chain.entry_id}_{label}": chain.chain_key
        for chain in candidates
        if chain.label is not None
        for label in chain.label.split(";")
    }
    return frozenset(keys | {of_label.get(target, target) for target in targets})
