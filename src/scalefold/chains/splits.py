"""Which chains are for training and which for validation, and why others are left out."""

from __future__ import annotations

import datetime
import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import xxhash

from scalefold.chains.candidates import Candidate
from scalefold.errors import InputError, counted, listed
from scalefold.raw.chains import Split

MOST_VALIDATION: Final = 200
RELATIVE: Final = "relatives of a validation chain"


@dataclass(frozen=True)
class Rules:
    """How chains are chosen. A filter lets a chain pass if the fact that it needs is unknown.

    Parameters
    ----------
    max_resolution
        Å; chains of this resolution or worse are left out, chains without one are not.
    max_one_residue
        Largest share of one residue type in a sequence (AlphaFold2, Suppl. sec. 1.2.5).
    min_length, max_length
        Residues.
    train_until
        Train on chains released until then; ``None``: whenever.
    num_train
        Training chains at most, whole clusters at random; ``None``: all.
    num_validation
        Validation chains, each of another cluster; ``None``: a tenth of the clusters, 200 at most.
    validation
        These chains are for validation, without filters.
    max_validation_length
        Longest of these chains.
    keep_relatives
        Train on chains of the validation chains' clusters as well.
    templates
        Whether `add_templates` is to follow.
    """

    max_resolution: float | None = 9.0
    max_one_residue: float = 0.8
    min_length: int | None = None
    max_length: int | None = None
    needs_cluster: bool = False
    train_until: datetime.date | None = None
    num_train: int | None = None
    num_validation: int | None = None
    validation: frozenset[str] | None = None
    max_validation_length: int | None = None
    keep_relatives: bool = False
    templates: bool = False

    @classmethod
    def mlperf(cls) -> Rules:
        """The rules of the MLPerf HPC v3.0 benchmark (``openfold/datasets.py``, ``train.py``)."""
        return cls(
            needs_cluster=True,
            train_until=datetime.date(2021, 9, 16),
            max_validation_length=700,
            keep_relatives=True,
            templates=True,
        )


@dataclass
class Choice:
    """The split of each chain that is listed, and how many each filter took."""

    splits: dict[str, Split] = field(default_factory=dict)
    taken: Counter[str] = field(default_factory=Counter)


def choose(candidates: Iterable[Candidate], rules: Rules) -> Choice:
    """Choose the chains to list.

    Clusters are chosen by a hash of their names, so the choice is the same again, and changes
    little if chains are added.

    Raises
    ------
    InputError
        There are no dates to split by.
    """
    choice, passed, validation = Choice(), [], []
    chains = list(candidates)
    for chain in chains:
        if rules.validation is not None and chain.chain_key in rules.validation:
            reason = _too_long(chain, rules.max_validation_length)
            if reason is None:
                validation.append(chain)
        else:
            reason = _filtered(chain, rules)
            if reason is None:
                passed.append(chain)
        if reason is not None:
            choice.taken[reason] += 1
    absent = (rules.validation or frozenset()) - {chain.chain_key for chain in chains}
    if absent:
        choice.taken["(validation chains that are not among the chains)"] = len(absent)
    early, late = _by_date(passed, rules, choice.taken)
    if rules.validation is None and rules.num_validation != 0:
        validation = _representatives(early, late, rules)
    held = _marks_of(validation) if not rules.keep_relatives else set()
    choice.splits = {chain.chain_key: "validation" for chain in validation}
    for chain in early:
        if not held.isdisjoint(chain.marks):
            if chain.chain_key not in choice.splits:
                choice.taken[RELATIVE] += 1
        else:
            choice.splits.setdefault(chain.chain_key, "train")
    if rules.num_train is not None:
        _thin_out(early, rules.num_train, choice)
    later = sum(chain.chain_key not in choice.splits for chain in late)
    if later:
        hint = " (--validation says how many are)" if rules.validation is None else ""
        reason = f"released after {rules.train_until}, and not chosen for validation{hint}"
        choice.taken[reason] = later
    return choice


def add_templates(choice: Choice, chains: Mapping[str, Candidate]) -> None:
    """List all other chains as templates, except those that are newer than every sample."""
    dates = [chains[key].release_date for key in choice.splits]
    newest = max((date for date in dates if date is not None), default=None)
    for key, chain in chains.items():
        date = chain.release_date
        if newest is None or date is None or date <= newest:
            choice.splits.setdefault(key, "template")


def _thin_out(chains: list[Candidate], number: int, choice: Choice) -> None:
    """Keep random clusters for training, with no more chains than ``number``, but at least one."""
    groups: dict[str, list[str]] = defaultdict(list)
    for chain in chains:
        if choice.splits.get(chain.chain_key) == "train":
            groups[chain.marks[0]].append(chain.chain_key)
    kept = 0
    for name in sorted(groups, key=_random):
        if kept and kept + len(groups[name]) > number:
            choice.taken[f"beyond {number:,} training chains"] += len(groups[name])
            for key in groups[name]:
                del choice.splits[key]
        else:
            kept += len(groups[name])


def _random(name: str) -> int:
    """Return a number to choose by: the same for a name on every machine and in every version."""
    return xxhash.xxh3_64_intdigest(name.encode())


def _filtered(chain: Candidate, rules: Rules) -> str | None:
    """Return the filter that removes a chain, ``None`` if all let it pass."""
    if rules.needs_cluster and chain.cluster is None:
        return "no sequence cluster"
    if None not in (rules.max_resolution, chain.resolution) and (
        chain.resolution >= rules.max_resolution  # type: ignore[operator]
    ):
        return f"resolution of {rules.max_resolution:g} Å or worse"
    if chain.sequence is None:
        return None
    if rules.min_length is not None and len(chain.sequence) < rules.min_length:
        return f"shorter than {rules.min_length} residues"
    if (reason := _too_long(chain, rules.max_length)) is not None:
        return reason
    if _largest_share(chain.sequence) > rules.max_one_residue:
        return f"more than {rules.max_one_residue:.0%} of one residue type"
    return None


@functools.lru_cache(1 << 18)  # many chains have the same sequence
def _largest_share(sequence: str) -> float:
    """Return the share of the most frequent residue type."""
    return max(map(sequence.count, set(sequence))) / max(1, len(sequence))


def _too_long(chain: Candidate, limit: int | None) -> str | None:
    if limit is None or chain.sequence is None or len(chain.sequence) <= limit:
        return None
    return f"longer than {limit} residues"


def _by_date(
    chains: list[Candidate], rules: Rules, taken: Counter[str]
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the chains until the date and those after it; those without a date are taken."""
    until = rules.train_until
    if until is None:
        return chains, []
    early = [chain for chain in chains if (d := chain.release_date) is not None and d <= until]
    late = [chain for chain in chains if (d := chain.release_date) is not None and d > until]
    if chains and not early and not late:
        raise InputError(
            "no release date is known, so chains cannot be split by date. Name a source that has "
            "dates too: mmcif_cache.json, chain_data_cache.json, a folder of structures, or packed "
            "shards. To get structures, make a list of all with --validation 0 and without "
            "--train-until, run `scalefold fetch -c CONFIG --only structures --out RAW` for it, "
            "and repeat this command with RAW/mmcif as one more source"
        )
    if undated := [chain for chain in chains if chain.release_date is None]:
        # A chain of a structure has a label: so the structure was read, and says no date.
        hint = any(chain.label is None for chain in undated)
        more = " (structures, as one more source, may have it)" if hint else ""
        taken[f"release date unknown{more}"] = len(undated)
    return early, late


def _representatives(
    early: list[Candidate], late: list[Candidate], rules: Rules
) -> list[Candidate]:
    """Return one chain of each cluster that is held out: of best resolution, then first by key."""
    groups: dict[str, list[Candidate]] = defaultdict(list)
    trained = set() if rules.train_until is None else _marks_of(early)
    # A chain without a cluster has unknown relatives, unless no chain has a cluster.
    has_clusters = any(chain.cluster is not None for chain in (*early, *late))
    for chain in early if rules.train_until is None else late:
        is_known = chain.cluster is not None or not has_clusters
        if is_known and trained.isdisjoint(chain.marks):
            groups[chain.marks[0]].append(chain)
    number = rules.num_validation
    if number is None:
        number = min(MOST_VALIDATION, max(1, len(groups) // 10))
    names = sorted(groups, key=_random)[:number]
    return [min(groups[name], key=_quality) for name in names]


def _quality(chain: Candidate) -> tuple[float, str]:
    return chain.resolution or float("inf"), chain.chain_key


def _marks_of(chains: Iterable[Candidate]) -> set[str]:
    return {mark for chain in chains for mark in chain.marks}


def check_clusters(candidates: Iterable[Candidate], max_without: float) -> None:
    """Refuse clusters that match too few of the chains: they may be joined by wrong names.

    Raises
    ------
    InputError
        More than this share of the chains has no cluster.
    """
    chains = list(candidates)
    without = [chain.chain_key for chain in chains if chain.cluster is None]
    if len(without) > max_without * len(chains):
        raise InputError(
            f"{len(without):,} of {len(chains):,} chains have no sequence cluster, more than "
            f"{max_without:.0%}; the first is {without[0]}. RCSB's clusters are joined by entity: "
            "name a folder of mmCIF files too, which says the entities, or pdb_seqres.txt.gz, "
            "which says most. Or give --clusters mmseqs, which computes them from sequences. "
            "--max-without-cluster raises the limit"
        )


def check_choice(chains: Mapping[str, Candidate], choice: Choice, rules: Rules) -> int:
    """Refuse a list that would mislead a training run; return the number of relatives in it.

    Raises
    ------
    InputError
        A split is empty; or a cluster or a sequence is in training and validation, unless
        ``rules.keep_relatives``.
    """
    members: dict[Split, list[Candidate]] = {"train": [], "validation": [], "template": []}
    for key, split in choice.splits.items():
        members[split].append(chains[key])
    wanted: tuple[Split, ...] = ("train", "validation")
    for split in wanted if rules.num_validation != 0 else wanted[:1]:
        if not members[split]:
            why = listed([f"{reason}: {count:,}" for reason, count in choice.taken.items()])
            hint = (
                ". Whole clusters are held out for validation: name more chains, or give "
                "--validation a smaller number, or 0 to hold none out"
                if rules.train_until is None
                else f". Give a later day than --train-until {rules.train_until}"
            )
            raise InputError(
                f"of {counted(len(chains), 'chain')} none is left for {split}"
                f"{hint if split == 'train' and members['validation'] else ''}"
                f"{'. Left out:' if why else ''}{why}"
            )
    held = {text for chain in members["validation"] for text in chain.marks}
    leaks = [chain.chain_key for chain in members["train"] if not held.isdisjoint(chain.marks)]
    if leaks and not rules.keep_relatives:
        raise InputError(
            f"{len(leaks):,} training chains share a cluster or a sequence with a validation "
            f"chain:{listed(leaks)}"
        )
    return len(leaks)
