"""Template hits in shards: as the search aligned them, and located."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scalefold.raw.aligned_hit import AlignedHit
from scalefold.raw.templates import Located, locate
from scalefold.shards.hit_codec import (
    PackedHits,
    decode_located,
    encode_hits,
    encode_located,
    template_hits,
)
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.writer import write_shard

SEQ_ID = bytes(range(32))
TEXT = st.text(st.characters(blacklist_categories=("Cs",)), max_size=8)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
COMPRESSION = st.sampled_from(["none", "lz4", "zstd"])


@st.composite
def aligned(draw: st.DrawFn) -> AlignedHit:
    columns = draw(st.lists(st.sampled_from(["AA", "AC", "A-", "-A"]), max_size=9))
    return AlignedHit(
        chain_key=draw(TEXT),
        probability=draw(FLOAT32),
        sum_probs=draw(FLOAT32),
        query_start=draw(st.integers(0, 99)),
        template_start=draw(st.integers(0, 99)),
        query_aligned="".join(column[0] for column in columns),
        template_aligned="".join(column[1] for column in columns),
    )


@st.composite
def places(draw: st.DrawFn) -> Located:
    pairs = hnp.arrays(np.int32, draw(st.integers(1, 5)))
    if draw(st.booleans()):
        return Located(draw(TEXT), realigned=(draw(pairs), draw(pairs)))
    return Located(draw(TEXT), draw(st.integers(-99, 99)))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    hits=st.lists(st.lists(aligned(), min_size=4, max_size=4), max_size=3),
    located=st.lists(st.dictionaries(st.integers(0, 3), places(), max_size=4), max_size=3),
    compression=COMPRESSION,
)
def test_hits_and_their_places_survive_a_file(hits, located, compression) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for family, rows in (
            ("hits", [encode_hits(SEQ_ID, row) for row in hits]),
            (
                "templates",
                [encode_located(SEQ_ID, of, row) for of, row in zip(hits, located, strict=False)],
            ),
        ):
            path = Path(folder) / f"{family}-00000.arrow"
            with write_shard(path, family, compression) as shard:
                for row in rows:
                    shard.add_batch(row)
            files[family] = ShardFile(path, family)
        for number, row in enumerate(hits):
            packed = PackedHits(files["hits"].row(number))
            assert packed.chain_keys == [hit.chain_key for hit in row]
            for hit, expected in zip(packed, row, strict=True):
                assert dataclasses.asdict(hit) == dataclasses.asdict(expected)
        for number, (_, row) in enumerate(zip(hits, located, strict=False)):
            found = decode_located(files["templates"].row(number))
            assert list(found) == list(row)
            for one, other in zip(found.values(), row.values(), strict=True):
                assert (one.chain_key, one.shift) == (other.chain_key, other.shift)
                np.testing.assert_equal(one.realigned, other.realigned)


def test_the_hash_depends_on_every_field() -> None:
    hit = {
        "chain_key": "1abc_A",
        "probability": 90.0,
        "sum_probs": 9.0,
        "query_start": 1,
        "template_start": 2,
        "query_aligned": "AA",
        "template_aligned": "A-",
    }
    other = {
        "chain_key": "1abc_B",
        "probability": 91.0,
        "sum_probs": 8.0,
        "query_start": 2,
        "template_start": 1,
        "query_aligned": "AC",
        "template_aligned": "-A",
    }
    rows = [[hit], [hit, hit], [], *([{**hit, name: other[name]}] for name in hit)]
    hashes = {
        encode_hits(SEQ_ID, [AlignedHit(**h) for h in row])["row_xxh3"][0].as_py() for row in rows
    }
    one, two = np.array([1], np.int32), np.array([2], np.int32)
    places = [
        {},
        {0: Located("a")},
        {1: Located("a")},
        {0: Located("b")},
        {0: Located("a", 1)},
        {0: Located("a", realigned=(one, two))},
        {0: Located("a", realigned=(two, one))},
    ]
    of = [AlignedHit(**hit)] * 2
    hashes |= {encode_located(SEQ_ID, of, row)["row_xxh3"][0].as_py() for row in places}
    assert len(hashes) == len(rows) + len(places)


@pytest.mark.parametrize(
    ("template", "sequence"),
    [
        ("MKTAYIAKQRQISFVKSHFSRQ", "GGGMKTAYIAKQRQISFVKSHFSRQ"),  # elsewhere
        ("MKTAYI--RQISFVKSHFSRQ", "MKTAYIRQISFVXSHFSRQ"),  # with an unknown residue
        ("MKTAYIAKQRQISFVKSHFSRQ", "MKTAYIAKQRQISFVHFSRQ"),  # realigned: two are not there
    ],
)
def test_a_located_hit_is_what_locating_says(template: str, sequence: str) -> None:
    hit = AlignedHit(
        chain_key="1abc_A",
        probability=90.0,
        sum_probs=9.0,
        query_start=4,
        template_start=7,
        query_aligned="W" * len(template),
        template_aligned=template,
    )
    found = locate(hit, {"1abc_A": sequence})
    assert isinstance(found, Located)
    packed = PackedHits(encode_hits(SEQ_ID, [hit]))
    (result,) = template_hits(packed, decode_located(encode_located(SEQ_ID, packed, {0: found})))
    agreeing = [
        template[q - 4] == sequence[t] or sequence[t] == "X"
        for q, t in zip(result.q_idx, result.t_idx, strict=True)
    ]
    assert len(agreeing) == encode_located(SEQ_ID, packed, {0: found})["covered"][0].as_py() > 0
    assert all(agreeing)
    assert result.q_idx.dtype == result.t_idx.dtype == np.int32
