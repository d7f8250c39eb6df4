"""Make a list of chains: sources, clusters, filters, splits, checks, the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scalefold.chains.candidates import Candidate
from scalefold.chains.clusters import (
    Assigned,
    assign_by_entity,
    compute_clusters,
    read_entity_clusters,
)
from scalefold.chains.sources import read_sources
from scalefold.chains.splits import (
    Choice,
    Rules,
    add_templates,
    check_choice,
    check_clusters,
    choose,
)
from scalefold.chains.targets import read_validation
from scalefold.raw.chains import CHAIN_COLUMNS
from scalefold.raw.table import write_table


@dataclass(frozen=True)
class ChainList:
    """A finished list of chains, and messages about it.

    Parameters
    ----------
    chains
        All that could have been listed, by key; with templates, all that the sources know.
    choice
        Splits, and the chains that each filter removed.
    assigned
        How RCSB's clusters were joined; ``None`` if they were not.
    num_relatives
        Training chains of the validation chains' clusters.
    """

    chains: dict[str, Candidate]
    choice: Choice
    assigned: Assigned | None
    num_relatives: int


def make_chain_list(
    sources: Sequence[Path],
    clusters: Path | Literal["mmseqs", "none"] | None,
    rules: Rules,
    out: Path,
    *,
    validation: Path | None = None,
    max_without_cluster: float = 0.01,
    jobs: int = 1,
) -> ChainList:
    """Make ``data.chains`` and write it to ``out``.

    Parameters
    ----------
    sources
        As :func:`scalefold.chains.sources.read_sources` takes them.
    clusters
        RCSB's clusters by entity; or ``mmseqs`` computes them; or ``none``: then the same
        sequences count as relatives, and no others. Default: those of the sources if they have
        any, otherwise ``mmseqs``.
    validation
        File with the validation chains, in place of ``rules.validation``.
    max_without_cluster
        Share of the chains that may have no cluster.

    Raises
    ------
    InputError
        Anything of the modules beside this one; nothing is written then.
    """
    candidates = read_sources(sources, jobs)
    assigned = None
    if clusters is None:
        are_known = any(chain.cluster is not None for chain in candidates)
        clusters = "none" if are_known else "mmseqs"
    elif clusters != "none":
        candidates.forget_clusters()
    if clusters == "mmseqs":
        compute_clusters(candidates, jobs)
    elif clusters != "none":
        assigned = assign_by_entity(candidates, read_entity_clusters(Path(clusters)))
    if clusters != "none":
        check_clusters(candidates, max_without_cluster)
    chains = {chain.chain_key: chain for chain in candidates}
    if validation is not None:
        rules = replace(rules, validation=read_validation(validation, candidates))
    choice = choose(chains.values(), rules)
    if rules.templates:
        chains = {chain.chain_key: chain for chain in candidates.everything()}
        add_templates(choice, chains)
    num_relatives = check_choice(chains, choice, rules)
    rows = ((key, choice.splits[key], chains[key].cluster or "") for key in sorted(choice.splits))
    write_table(out, CHAIN_COLUMNS, rows)
    return ChainList(chains, choice, assigned, num_relatives)
