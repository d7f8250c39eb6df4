"""Filters and splits, and the checks of what they give."""

from __future__ import annotations

import datetime
import random
from collections import Counter

import pytest

from scalefold.chains.candidates import Candidate
from scalefold.chains.splits import (
    Choice,
    Rules,
    add_templates,
    check_choice,
    check_clusters,
    choose,
)
from scalefold.errors import InputError

CUT = datetime.date(2010, 1, 1)


def archive(seed: int, size: int = 300) -> dict[str, Candidate]:
    """Chains at random: clusters of all sizes, some facts unknown, equal sequences."""
    rng = random.Random(seed)
    chains = {}
    for number in range(size):
        family = int(rng.paretovariate(0.6)) % 60
        sequence = "ACDEFGHIKL" * (family % 4 + 1) + "M" * rng.randrange(60)
        known = rng.random()
        chains[f"{number:04}_A"] = Candidate(
            f"{number:04}_A",
            sequence if known < 0.95 else None,
            release_date=datetime.date(rng.randrange(1990, 2024), 1, 1) if known > 0.05 else None,
            resolution=rng.choice([None, 1.5, 3.0, 8.99, 9.0, 20.0]),
            cluster=f"c{family}" if rng.random() < 0.97 else None,
        )
    return chains


@pytest.mark.parametrize("until", [None, CUT])
def test_no_cluster_and_no_sequence_is_on_both_sides(until: datetime.date | None) -> None:
    for seed in range(20):
        chains = archive(seed)
        rules = Rules(train_until=until, num_validation=3)
        choice = choose(chains.values(), rules)
        assert check_choice(chains, choice, rules) == 0
        sides: dict[str, set[str]] = {"train": set(), "validation": set()}
        clusters: Counter[str] = Counter()
        for key, split in choice.splits.items():
            chain = chains[key]
            sides[split] |= {text for text in (chain.cluster, chain.sequence) if text}
            if split == "validation":
                assert chain.cluster is not None
                clusters[chain.cluster] += 1
            if until is not None:
                assert chain.release_date is not None
                assert (chain.release_date <= until) == (split == "train")
            assert chain.resolution is None or chain.resolution < 9.0
        assert sides["train"].isdisjoint(sides["validation"])
        assert set(clusters.values()) == {1}


def test_every_chain_is_listed_or_counted() -> None:
    for seed in range(5):
        chains = archive(seed)
        choice = choose(chains.values(), Rules(train_until=CUT, min_length=12, max_length=70))
        assert len(choice.splits) + sum(choice.taken.values()) == len(chains)
        samples = dict(choice.splits)
        add_templates(choice, chains)
        assert choice.splits.items() >= samples.items()
        dates = {key: chain.release_date or datetime.date.min for key, chain in chains.items()}
        newest = max(dates[key] for key in samples)
        for key in chains.keys() - choice.splits.keys():
            assert dates[key] > newest, "it is no template of any sample"


def test_the_choice_is_stable() -> None:
    """The order of sources does not matter, and one more chain changes its own cluster only."""
    chains = archive(3)
    first = choose(chains.values(), Rules()).splits
    assert choose(reversed(chains.values()), Rules()).splits == first
    more = {**chains, "new1_A": Candidate("new1_A", "ACDEFGH", cluster="c1", resolution=9.5)}
    assert choose(more.values(), Rules()).splits == first


def test_a_validation_chain_is_its_clusters_best() -> None:
    chains = [
        Candidate("1abc_A", resolution=2.0, cluster="x"),
        Candidate("1abc_B", cluster="x"),
        Candidate("2abc_B", resolution=1.2, cluster="x"),
        Candidate("2abc_A", resolution=1.2, cluster="x"),
    ]
    assert choose(chains, Rules(num_validation=1)).splits == {"2abc_A": "validation"}


def test_given_validation_chains() -> None:
    chains = {
        key: Candidate(key, "ACDEFGHIKL" * n, cluster=cluster)
        for key, cluster, n in (("1abc_A", "x", 1), ("2abc_A", "x", 2), ("3abc_A", "y", 3))
    }
    given = frozenset({"1abc_A", "9non_A"})
    choice = choose(chains.values(), Rules(validation=given))
    assert choice.splits == {"1abc_A": "validation", "3abc_A": "train"}
    rules = Rules(validation=given, keep_relatives=True)
    choice = choose(chains.values(), rules)
    assert choice.splits["2abc_A"] == "train"
    assert check_choice(chains, choice, rules) == 1
    choice = choose(chains.values(), Rules(validation=given, max_validation_length=9))
    assert "validation" not in choice.splits.values()
    counts = list(
        choice.taken.values()
    )  # 1abc_A is too long, 9non_A absent, 2abc_A and 3abc_A train
    assert counts == [1, 1]


def test_a_chosen_validation_chain_is_not_trained_on_with_its_relatives() -> None:
    chains = [Candidate(f"{n}abc_A", "ACDEFGHIKL" * n, cluster="x") for n in (1, 2)]
    choice = choose(chains, Rules(num_validation=1, keep_relatives=True))
    assert sorted(choice.splits.values()) == ["train", "validation"]


def test_structures_are_no_hint_for_what_structures_do_not_say() -> None:
    """A chain that was read from a structure has a label."""
    dated = Candidate("1abc_A", "MK", release_date=CUT)
    undated = Candidate("2abc_A", "MKV", label="A")
    rules = Rules(train_until=CUT, num_validation=0)
    (known,) = choose([dated, undated], rules).taken
    (hinted,) = choose([dated, undated, Candidate("3abc_A", "MKVL")], rules).taken
    assert hinted.startswith(known)
    assert "structures" in hinted.removeprefix(known)


def test_a_random_part_is_of_whole_clusters() -> None:
    for seed in range(5):
        chains = archive(seed)
        whole = choose(chains.values(), Rules(num_validation=2)).splits
        part = choose(chains.values(), Rules(num_validation=2, num_train=100))
        assert part.splits.items() < whole.items()
        assert len(part.splits) + sum(part.taken.values()) == len(chains)
        kept = {chains[key].marks[0] for key, split in part.splits.items() if split == "train"}
        left = {chains[key].marks[0] for key in whole.keys() - part.splits.keys()}
        assert kept.isdisjoint(left)
        assert sum(split == "train" for split in part.splits.values()) <= 100
    one = [Candidate(f"{i:04}_A", cluster="x") for i in range(9)]
    assert len(choose(one, Rules(num_validation=0, num_train=3)).splits) == 9


def test_what_would_mislead_is_an_error() -> None:
    chains = {key: Candidate(key, "MK", cluster="x") for key in ("1abc_A", "2abc_A")}
    choice = choose(chains.values(), Rules())
    with pytest.raises(InputError, match="none is left for train"):
        check_choice(chains, choice, Rules())
    choice = choose(chains.values(), Rules(num_validation=0))
    assert check_choice(chains, choice, Rules(num_validation=0)) == 0
    with pytest.raises(InputError, match="none is left for validation"):
        check_choice(chains, choice, Rules())
    leak = Choice({"1abc_A": "train", "2abc_A": "validation"})
    with pytest.raises(InputError, match="share a cluster"):
        check_choice(chains, leak, Rules())
    chains["2abc_A"].cluster = "y"
    with pytest.raises(InputError, match="share a cluster or a sequence"):
        check_choice(chains, leak, Rules())
    with pytest.raises(InputError, match="no release date is known"):
        choose(chains.values(), Rules(train_until=CUT))


def test_clusters_that_do_not_match_are_an_error() -> None:
    chains = [Candidate(f"{i:04}_A", cluster="x" if i > 1 else None) for i in range(200)]
    check_clusters(chains, 0.01)
    chains[2].cluster = None
    with pytest.raises(InputError, match="3 of 200 chains"):
        check_clusters(chains, 0.01)


def mlperf_reference(chains: list[Candidate], targets: frozenset[str]) -> dict[str, str]:
    """What the reference selects: `_filter_pdb_chains_for_training` and the validation set's."""
    splits = {}
    for chain in chains:
        sequence = chain.sequence or ""
        date = chain.release_date.isoformat() if chain.release_date else ""
        frequency = Counter(sequence).most_common(1)[0][1] / len(sequence) if sequence else 1.0
        if (
            "1900-01-01" <= date <= "2021-09-16"
            and (chain.resolution is None or chain.resolution < 9.0)
            and frequency <= 0.8
            and chain.cluster is not None
        ):
            splits[chain.chain_key] = "train"
        if chain.chain_key in targets and len(sequence) <= 700:
            splits[chain.chain_key] = "validation"
    return splits


def test_mlperf_selects_what_its_reference_does() -> None:
    for seed in range(10):
        chains = archive(seed, 600)
        known = [chain for chain in chains.values() if chain.sequence is not None]
        for chain in random.Random(seed).sample(known, 30):
            chain.sequence = "MKV" * 400
        late = [c.chain_key for c in known if c.release_date and c.release_date.year > 2021]
        targets = frozenset(late[:40])
        rules = Rules(**{**vars(Rules.mlperf()), "validation": targets})
        assert choose(known, rules).splits == mlperf_reference(known, targets)
