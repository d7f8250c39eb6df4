"""Clusters by entity, by equal sequences, and computed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from scalefold.chains.candidates import Candidate, Candidates
from scalefold.chains.clusters import assign_by_entity, compute_clusters, read_entity_clusters
from scalefold.errors import InputError

LETTERS = "ACDEFGHIKLMNPQRSTVWY"


def candidates(chains: Iterable[Candidate]) -> Candidates:
    found = Candidates()
    found.add(chains, "test", listed=True)
    return found


def of(found: Candidates) -> dict[str, str | None]:
    return {chain.chain_key: chain.cluster for chain in found}


def test_reads_rcsbs_file(tmp_path: Path) -> None:
    path = tmp_path / "clusters-by-entity-40.txt"
    path.write_text("AF_AFP12345F1_1 4HHB_1 2dn1_1\nPDB_00004HHB_2\n\nMA_MAX_1 9XYZ_12 junk\n")
    clusters = read_entity_clusters(path)
    assert clusters == {
        "4hhb": {"1": "4hhb_1", "2": "pdb_00004hhb_2"},
        "2dn1": {"1": "4hhb_1"},
        "9xyz": {"12": "9xyz_12"},
    }
    path.write_text("4hhb_A 4hhb_B\n")
    with pytest.raises(InputError, match="entity"):
        read_entity_clusters(path)


def test_chains_join_by_entity_not_by_name() -> None:
    """Chain 1 of an entry is not its entity 1, and chain B may well be."""
    found = candidates([Candidate("1abc_1", "MK", "2"), Candidate("1abc_B", "AA", "1")])
    assigned = assign_by_entity(found, {"1abc": {"1": "first", "2": "second"}})
    assert of(found) == {"1abc_1": "second", "1abc_B": "first"}
    assert assigned.by_entity == 2


def test_equal_sequences_narrow_down() -> None:
    """Of 1abc's two entities, 2abc says which cluster MK is in, so AA is in the other."""
    chains = [Candidate("1abc_A", "MK"), Candidate("1abc_B", "AA"), Candidate("2abc_A", "MK")]
    clusters = {"1abc": {"1": "x", "2": "y"}, "2abc": {"1": "y"}}
    found = candidates(chains)
    assigned = assign_by_entity(found, clusters)
    assert of(found) == {"1abc_A": "y", "1abc_B": "x", "2abc_A": "y"}
    assert (assigned.by_sequence, assigned.ambiguous) == (3, 0)
    alone = candidates([Candidate("1abc_A", "MK"), Candidate("1abc_B", "AA")])
    assert assign_by_entity(alone, clusters).ambiguous == 2
    assert of(alone) == {"1abc_A": None, "1abc_B": None}


def test_known_entities_say_the_cluster_of_equal_sequences() -> None:
    found = candidates(
        [
            Candidate("1abc_A", "MK"),
            Candidate("1abc_B", "AA"),
            Candidate("2abc_A", "MK", entity="2"),
        ]
    )
    assign_by_entity(found, {"1abc": {"1": "x", "2": "y"}, "2abc": {"1": "z", "2": "y"}})
    assert of(found) == {"1abc_A": "y", "1abc_B": "x", "2abc_A": "y"}


def test_a_peptide_that_rcsb_leaves_out_takes_no_others_cluster() -> None:
    found = candidates([Candidate("1abc_A", "MKMKMK"), Candidate("1abc_P", "A")])
    assign_by_entity(found, {"1abc": {"1": "x"}})
    assert of(found) == {"1abc_A": None, "1abc_P": None}
    found = candidates([*found, Candidate("2abc_A", "MKMKMK")])
    assign_by_entity(found, {"1abc": {"1": "x"}, "2abc": {"1": "x"}})
    assert of(found) == {"1abc_A": "x", "1abc_P": None, "2abc_A": "x"}


def test_an_entity_that_is_known_leaves_its_cluster_to_no_other() -> None:
    found = candidates([Candidate("1abc_A", "MKMKMK", entity="1"), Candidate("1abc_P", "A")])
    assign_by_entity(found, {"1abc": {"1": "x"}})
    assert of(found) == {"1abc_A": "x", "1abc_P": None}


@pytest.mark.parametrize("share_known", [0.0, 0.2])
def test_sequences_never_get_a_wrong_cluster(share_known: float) -> None:
    """Against archives made at random, of which the truth is known."""
    for seed in range(30):
        rng = random.Random(seed)
        truth = {f"{'M' * (i + 1)}": f"c{rng.randrange(12)}" for i in range(30)}
        chains, clusters, expected = [], {}, {}
        for number in range(40):
            entry = f"{number:04}"
            entities = rng.sample(list(truth), rng.choice([1, 1, 2, 3, 6]))
            names = rng.sample("ABCDEFGHIJKLMNOP", 2 * len(entities))
            for place, name in enumerate(names):
                entity = place % len(entities)
                sequence = entities[entity]
                known = str(entity + 1) if rng.random() < share_known else None
                chains.append(Candidate(f"{entry}_{name}", sequence, entity=known))
                expected[f"{entry}_{name}"] = truth[sequence]
            # As in RCSB's file, some of the shortest have no cluster.
            clusters[entry] = {
                str(i): truth[s] for i, s in enumerate(entities, start=1) if s != "M"
            }
        expected |= {c.chain_key: None for c in chains if c.sequence == "M"}
        found = candidates(chains)
        assign_by_entity(found, clusters)
        result = of(found)
        assert all(cluster in (None, expected[key]) for key, cluster in result.items())
        assert sum(cluster is not None for cluster in result.values()) > len(result) / 3


@pytest.mark.skipif(shutil.which("mmseqs") is None, reason="needs MMseqs2")
def test_mmseqs_finds_families() -> None:
    rng = random.Random(1)
    families = ["".join(rng.choices(LETTERS, k=120)) for _ in range(3)]
    chains = [Candidate("9pep_A", "MKV")]  # shorter than a k-mer
    for number, family in enumerate(families):
        for copy in range(3):
            residues = list(family)
            for place in rng.sample(range(120), 30 * (copy > 0)):
                residues[place] = rng.choice(LETTERS)
            chains.append(Candidate(f"{number}fam_{copy}", "".join(residues)))
    found = candidates(chains)
    compute_clusters(found, jobs=1)
    members: dict[str | None, set[str]] = {}
    for chain in found:
        members.setdefault(chain.cluster, set()).add(chain.entry_id)
    assert sorted(map(sorted, members.values())) == [["0fam"], ["1fam"], ["2fam"], ["9pep"]]
    assert set(members) <= {chain.chain_key for chain in found}


def test_mmseqs_that_is_absent_or_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = candidates([Candidate("1abc_A", "MKV")])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"apt-get install mmseqs2.*--clusters none"):
        compute_clusters(found, jobs=1)
    fake = tmp_path / "mmseqs"
    fake.write_text("#!/bin/sh\necho no space left >&2\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(InputError, match=r"exit code 3.*: no space left"):
        compute_clusters(found, jobs=1)
    with pytest.raises(InputError, match="no sequence"):
        compute_clusters(candidates([Candidate("1abc_A")]), jobs=1)
