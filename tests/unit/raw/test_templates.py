from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from scalefold.raw.hhr import HhrHit, read_hhr
from scalefold.raw.mmcif import Entry, read_entry
from scalefold.raw.templates import (
    Located,
    best_first,
    locate,
    sequence_reason,
)

FRAGMENT = "MKTAYIAKQRQISFVKSHFSRQ"


def make_hit(
    query: str, template: str, *, template_start: int = 0, chain_key: str = "1abc_A"
) -> HhrHit:
    """A hit from two aligned rows; the query starts at its first residue."""
    residues_q, residues_t = (len(row) - row.count("-") for row in (query, template))
    return HhrHit(
        number=1,
        name=chain_key,
        chain_key=chain_key,
        probability=90.0,
        e_value=1e-5,
        score=50.0,
        aligned_columns=sum("-" not in pair for pair in zip(query, template, strict=True)),
        identities=1.0,
        similarity=1.0,
        sum_probs=12.5,
        template_neff=None,
        query_length=residues_q,
        template_length=residues_t,
        query_start=0,
        template_start=template_start,
        query_aligned=query,
        template_aligned=template,
    )


def assert_located(result: Located | str, key: str, sequence: str, hit: HhrHit) -> None:
    """Every pair must join the letters that the hit joins (where the chain agrees with it)."""
    assert isinstance(result, Located), result
    assert result.chain_key == key
    letters = dict(
        zip(
            hit.q_idx,
            (hit.template_fragment[i - hit.template_start] for i in hit.t_idx),
            strict=True,
        )
    )
    agreeing = [sequence[t] == letters[q] for q, t in zip(*result.pairs(hit), strict=True)]
    assert np.mean(agreeing) >= 0.9


def test_duplicates_are_excluded_only_when_they_cover_the_query() -> None:
    query = FRAGMENT * 2
    assert "of the query itself" in (sequence_reason(make_hit(query, query), query) or "")
    # 95 % and one part of it less: allowed.
    assert sequence_reason(make_hit(FRAGMENT, FRAGMENT), query) is None
    changed = "W" + query[1:]
    assert sequence_reason(make_hit(query, changed), query) is None


def test_duplicate_with_another_parent_of_a_modified_residue_is_one() -> None:
    query = "Q" + FRAGMENT * 2
    hit = make_hit(query, "E" + query[1:])
    assert sequence_reason(hit, query) is None
    assert sequence_reason(hit, query, {0: "E"}) is not None
    assert sequence_reason(hit, query, {1: "E"}) is None


def test_duplicate_threshold_is_more_than_95_percent() -> None:
    query = "ACDEFGHIKLMNPQRSTVWY" * 2
    at = make_hit(query[:38], query[:38])  # 38 / 40 = 0.95
    above = make_hit(query[:39], query[:39])
    assert sequence_reason(at, query) is None
    assert sequence_reason(above, query) is not None


def test_short_hits_are_excluded() -> None:
    query = "ACDEFGHIKLMNPQRSTVWY" * 6
    at_a_tenth = make_hit(query[:12], "W" * 12)
    assert "aligns 0.100" in (sequence_reason(at_a_tenth, query) or "")
    assert sequence_reason(make_hit(query[:13], "W" * 13), query) is None
    nine = make_hit(query[:9], "W" * 9)
    assert "9 residues, 10 are needed" in (sequence_reason(nine, query[:40]) or "")
    assert sequence_reason(make_hit(query[:10], "W" * 10), query[:40]) is None


def test_best_hits_come_first_and_equals_stay_in_order() -> None:
    hits = [
        dataclasses.replace(make_hit(FRAGMENT, FRAGMENT), number=n, sum_probs=s)
        for n, s in ((1, 3.0), (2, 9.0), (3, 9.0), (4, 5.0))
    ]
    assert [hit.number for hit in best_first(hits)] == [2, 3, 4, 1]


def test_exact_fragment_in_the_named_chain() -> None:
    hit = make_hit(FRAGMENT, FRAGMENT, template_start=3)
    sequence = "GSH" + FRAGMENT + "LEHHHH"
    result = locate(hit, {"1abc_B": sequence, "1abc_A": sequence})
    assert_located(result, "1abc_A", sequence, hit)
    assert isinstance(result, Located)
    assert result.pairs(hit)[1].tolist() == list(range(3, 25))
    assert result.pairs(hit)[1].dtype == np.int32


def test_database_numbering_may_differ_from_the_chain() -> None:
    hit = make_hit(FRAGMENT, FRAGMENT, template_start=0)  # the database lacks the tag
    sequence = "GSH" + FRAGMENT
    assert_located(locate(hit, {"1abc_A": sequence}), "1abc_A", sequence, hit)


def test_repeats_are_told_apart_by_position() -> None:
    hit = make_hit(FRAGMENT, FRAGMENT, template_start=len(FRAGMENT))
    result = locate(hit, {"1abc_A": FRAGMENT * 3})
    assert isinstance(result, Located)
    assert result.pairs(hit)[1][0] == len(FRAGMENT)


def test_other_chain_of_the_entry() -> None:
    hit = make_hit(FRAGMENT, FRAGMENT)
    result = locate(hit, {"1abc_A": "GGGG", "1abc_C": FRAGMENT})
    assert_located(result, "1abc_C", FRAGMENT, hit)


@pytest.mark.parametrize("in_hit", [True, False])
def test_x_matches_anything(in_hit: bool) -> None:
    known, masked = "GG" + FRAGMENT, "GG" + FRAGMENT.replace("Q", "X")
    fragment, sequence = (masked[2:], known) if in_hit else (known[2:], masked)
    hit = make_hit(FRAGMENT, fragment)
    result = locate(hit, {"1abc_A": sequence})
    assert isinstance(result, Located)
    assert result.pairs(hit)[1].tolist() == list(range(2, 2 + len(FRAGMENT)))


def test_realignment_maps_around_insertions_and_losses() -> None:
    # The structure's sequence lost one residue and gained three against the database's.
    sequence = "GSHM" + FRAGMENT[:8] + FRAGMENT[9:15] + "GGG" + FRAGMENT[15:] + "HHHH"
    hit = make_hit(FRAGMENT, FRAGMENT, template_start=40)
    result = locate(hit, {"1abc_A": sequence})
    assert_located(result, "1abc_A", sequence, hit)
    assert isinstance(result, Located)
    assert 8 not in result.pairs(hit)[0]
    expected = [*range(4, 12), *range(12, 18), *range(21, 28)]
    assert result.pairs(hit)[1].tolist() == expected


def test_realignment_keeps_the_hits_gaps() -> None:
    query = FRAGMENT[:5] + "WWW" + FRAGMENT[5:]
    hit = make_hit(query, FRAGMENT[:5] + "---" + FRAGMENT[5:])
    sequence = "A" + FRAGMENT[:10] + "C" + FRAGMENT[11:]
    result = locate(hit, {"1abc_A": sequence})
    assert_located(result, "1abc_A", sequence, hit)
    assert isinstance(result, Located)
    assert result.pairs(hit)[0].tolist() == [*range(5), *range(8, len(query))]


def test_too_different_sequences_and_missing_chains() -> None:
    hit = make_hit(FRAGMENT, FRAGMENT)
    other = "".join("G" if i % 5 == 0 else s for i, s in enumerate(FRAGMENT))  # 77 % identical
    result = locate(hit, {"1abc_A": other})
    assert isinstance(result, str)
    assert "0.9 is needed" in result
    missing = locate(hit, {"1abc_B": "GGG", "1abc_C": "GGG"})
    assert isinstance(missing, str)
    assert "chain 1abc_A is not in its entry, which has 1abc_B, 1abc_C" in missing
    only = FRAGMENT[:10] + "A" + FRAGMENT[11:]
    assert_located(locate(hit, {"1abc_Z": only}), "1abc_Z", only, hit)


def test_bundled_hits_land_on_real_chains(demo: Path) -> None:
    """The real relatives pass, and their aligned CA atoms lie like the query's."""
    mirror = demo / "mirror/wwpdb/pub/pdb/data/structures/divided/mmCIF"

    def entry(name: str) -> Entry:
        return read_entry(mirror / name[-3:-1] / f"{name}.cif.gz")

    for query_key, template_key, limit_angstrom in (
        ("4zey_A", "2crb_A", 3.0),
        ("2nwd_X", "1aki_A", 1.5),
        ("2nwd_X", "1hml_A", 2.5),
    ):
        query = entry(query_key.split("_")[0]).chain(query_key)
        path = demo / "mirror/openproteinset/pdb" / query_key / "hhr/pdb70_hits.hhr"
        hits = read_hhr(path, query.sequence)
        hit = next(hit for hit in hits if hit.chain_key == template_key)
        assert sequence_reason(hit, query.sequence) is None
        found_entry = entry(hit.entry_id)
        located = locate(hit, {c.chain_key: c.sequence for c in found_entry.chains})
        assert isinstance(located, Located)
        template = found_entry.chain(located.chain_key)
        q_idx, t_idx = located.pairs(hit)
        seen = query.atom_mask[q_idx, 1] & template.atom_mask[t_idx, 1]
        a = query.positions[q_idx[seen], 1].astype(np.float64)
        b = template.positions[t_idx[seen], 1].astype(np.float64)
        # Distances within each structure need no superposition.
        inner = [np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (a, b)]
        assert np.sqrt(np.mean((inner[0] - inner[1]) ** 2)) < limit_angstrom, template_key


def test_the_query_itself_is_filtered_out(demo: Path) -> None:
    folder = demo / "mirror/openproteinset/pdb/3zee_A"
    text = (folder / "a3m/swissprot_hits.a3m").read_text()
    sequence = "".join(text.split(">")[1].split("\n")[1:])
    hits = read_hhr(folder / "hhr/pdb70_hits.hhr", sequence)
    assert {hit.chain_key for hit in hits} == {"3zee_A", "4i6p_A"}
    assert all("of the query itself" in (sequence_reason(h, sequence) or "") for h in hits)
