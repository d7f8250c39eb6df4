"""Sequence clusters of the candidates: RCSB's by entity, or computed by MMseqs2."""

from __future__ import annotations

import logging
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scalefold.chains.candidates import Candidate, Candidates
from scalefold.errors import InputError
from scalefold.raw.chain_key import short_form
from scalefold.raw.compressed import read_lines
from scalefold.search.binaries import find_binary
from scalefold.search.process import UNLIMITED, ToolError, run

logger = logging.getLogger(__name__)

_ENTITY: Final = re.compile(r"((?:[0-9][A-Z0-9]{3})|(?:PDB_[0-9A-Z]{8}))_(\d+)")
IDENTITY: Final = 0.4
_AS_RCSB: Final = ("-c", "0.9", "-s", "8", "--max-seqs", "1000", "--cluster-mode", "1")
"""Options of ``mmseqs easy-cluster`` as OpenFold's guide states them for the PDB's clusters."""


@dataclass(frozen=True)
class Assigned:
    """Numbers of chains that may be listed, by how they got their clusters."""

    by_entity: int = 0
    by_sequence: int = 0
    ambiguous: int = 0


def read_entity_clusters(path: Path) -> dict[str, dict[str, str]]:
    """Read RCSB's ``clusters-by-entity-40.txt``: entry -> entity -> name of the cluster.

    A cluster is a line of entities such as ``4HHB_1``. Its name is the first entity of the PDB.
    Computed models are skipped.

    Raises
    ------
    InputError
        The file cannot be read, or has no entity of the PDB.
    """
    clusters: dict[str, dict[str, str]] = {}
    for line in read_lines(path):
        name = ""
        for text in line.upper().split():
            if match := _ENTITY.fullmatch(text):
                name = name or text.lower()
                clusters.setdefault(short_form(match[1].lower()), {})[match[2]] = name
    if not clusters:
        raise InputError(
            f"{path}: has no entity of the PDB such as 4HHB_1, as a line of RCSB's "
            "clusters-by-entity-40.txt has. Name that file."
        )
    return clusters


def assign_by_entity(candidates: Candidates, clusters: Mapping[str, Mapping[str, str]]) -> Assigned:
    """Give each chain the cluster of its entity.

    If the entity's number is unknown, as in ``pdb_seqres.txt``, chains of an entry with equal
    sequences are one entity. Equal sequences are in one cluster, so all entries that have a
    sequence narrow its cluster down. A chain whose cluster is still uncertain gets none.
    """
    of_sequence = _clusters_by_sequence(candidates.everything(), clusters)
    counts: Counter[str] = Counter()
    for chain in candidates:
        of_entry = clusters.get(chain.entry_id, {})
        if chain.entity is not None:
            chain.cluster = of_entry.get(chain.entity)
            counts["by_entity"] += chain.cluster is not None
        elif chain.sequence is not None:
            found = of_sequence.get(chain.sequence, frozenset())
            (chain.cluster,) = found if len(found) == 1 else (None,)
            counts["by_sequence"] += chain.cluster is not None
            counts["ambiguous"] += len(found) > 1
    return Assigned(**counts)


def _clusters_by_sequence(
    chains: Iterable[Candidate], clusters: Mapping[str, Mapping[str, str]]
) -> dict[str, frozenset[str | None]]:
    """Return the clusters that each sequence may be in; ``None`` stands for no cluster."""
    entries: dict[str, set[str]] = {}  # sequences of unknown entities
    known: dict[str, dict[str, str]] = {}  # sequences of the others, by entity
    possible: dict[str, frozenset[str | None]] = {}
    for chain in chains:
        if chain.sequence is None:
            continue
        if chain.entity is None:
            entries.setdefault(chain.entry_id, set()).add(chain.sequence)
            continue
        known.setdefault(chain.entry_id, {})[chain.entity] = chain.sequence
        if (cluster := clusters.get(chain.entry_id, {}).get(chain.entity)) is not None:
            possible[chain.sequence] = frozenset({cluster})
    # For each entry: sequences and clusters of its entities that are not known. A sequence without
    # an entity in the file, such as a short peptide, has no cluster.
    cases: list[tuple[set[str], Counter[str | None]]] = []
    for entry, sequences in entries.items():
        placed, of_entry = known.get(entry, {}), clusters.get(entry, {})
        sequences -= set(placed.values())
        left = [cluster for entity, cluster in of_entry.items() if entity not in placed]
        if of_entry:
            cases.append((sequences, Counter([*left, *[None] * (len(sequences) - len(left))])))
    for sequences, available in cases:
        for sequence in sequences:
            possible[sequence] = possible.get(sequence, frozenset(available)) & available.keys()
    while _narrow(cases, possible):
        pass
    return possible


def _narrow(
    cases: Iterable[tuple[set[str], Counter[str | None]]],
    possible: dict[str, frozenset[str | None]],
) -> bool:
    """Remove clusters of an entry's certain sequences from the choices of its other sequences."""
    changed = False
    for sequences, available in cases:
        certain = Counter(c for s in sequences if len(possible[s]) == 1 for c in possible[s])
        left = available - certain
        for sequence in sequences:
            before = possible[sequence]
            if len(before) > 1 and (after := before & left.keys()) and after != before:
                possible[sequence] = after
                changed = True
    return changed


def compute_clusters(candidates: Candidates, jobs: int) -> None:
    """Cluster the sequences of the listed chains at 40 % identity by MMseqs2.

    A cluster is named after the first chain of its representative.

    Raises
    ------
    InputError
        MMseqs2 is not there or fails, or no sequence is known.
    """
    first: dict[str, str] = {}
    for chain in candidates:
        if chain.sequence is not None:
            first.setdefault(chain.sequence, chain.chain_key)
    if not first:
        raise InputError(
            "no sequence is known, so none can be clustered. Name a source that has them too, such "
            "as pdb_seqres.txt.gz or a folder of structures, or give --clusters a file"
        )
    logger.info("MMseqs2: clusters %s sequences", f"{len(first):,}")
    representative = _run_mmseqs(first, jobs)
    for chain in candidates:
        if chain.sequence is not None:
            own = first[chain.sequence]
            chain.cluster = representative.get(own, own)


def _run_mmseqs(first: Mapping[str, str], jobs: int) -> dict[str, str]:
    """Return, of each sequence's name, that of its cluster's representative."""
    try:
        program = str(find_binary("mmseqs"))
    except InputError as error:
        raise InputError(
            f"{error}. Or give --clusters RCSB's clusters-by-entity-40.txt, or --clusters none"
        ) from error
    with tempfile.TemporaryDirectory(prefix="scalefold-mmseqs-") as folder:
        place = Path(folder)
        with (place / "sequences.fasta").open("w") as file:
            file.writelines(f">{name}\n{sequence}\n" for sequence, name in first.items())
        command = [
            program, "easy-cluster", "sequences.fasta", "out", "tmp", "--min-seq-id",
            str(IDENTITY), *_AS_RCSB, "--threads", str(jobs), "-v", "1",
        ]  # fmt: skip
        try:
            run(command, UNLIMITED, place)
        except ToolError as error:
            raise InputError(
                f"clusters: {error}. MMseqs2 has its files in the folder that TMPDIR names: make "
                "room there, or give --clusters a file"
            ) from error
        pairs = (line.split("\t") for line in read_lines(place / "out_cluster.tsv"))
        return {member: representative for representative, member in pairs}
