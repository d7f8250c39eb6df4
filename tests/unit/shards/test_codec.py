from __future__ import annotations

import dataclasses
import datetime
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scalefold.errors import InputError
from scalefold.shards.codec import decode_chain, decode_msa, encode_chain, encode_msa
from scalefold.shards.records import ChainRecord, MsaRecord
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.writer import write_shard

TEXT = st.text(st.characters(blacklist_categories=("Cs",)), max_size=8)
SEQ_ID = st.binary(min_size=32, max_size=32)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
COMPRESSION = st.sampled_from(["none", "lz4", "zstd"])


@st.composite
def chains(draw: st.DrawFn) -> ChainRecord:
    n = draw(st.integers(1, 12))
    mask = draw(hnp.arrays(np.bool_, (n, 37)))
    positions = draw(hnp.arrays(np.float32, (n, 37, 3), elements=FLOAT32))
    return ChainRecord(
        chain_key=draw(TEXT),
        label_asym_id=draw(TEXT),
        auth_asym_id=draw(TEXT),
        seq_id=draw(SEQ_ID),
        method=draw(TEXT),
        origin=draw(st.sampled_from(["experimental", "distilled"])),
        aatype=draw(hnp.arrays(np.uint8, n, elements=st.integers(0, 20))),
        positions=np.where(mask[..., None], positions, np.float32(0)),
        atom_mask=mask,
        resolution=draw(st.none() | st.floats(0, 100)),
        release_date=draw(st.none() | st.dates()),
        cluster_id=draw(st.none() | TEXT),
        confidence=draw(st.none() | hnp.arrays(np.float32, n, elements=FLOAT32)),
    )


@st.composite
def msas(draw: st.DrawFn) -> MsaRecord:
    r, n = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    counts = draw(hnp.arrays(np.int64, r, elements=st.integers(0, 3)))
    d = int(counts.sum())
    return MsaRecord(
        seq_id=draw(SEQ_ID),
        msa=draw(hnp.arrays(np.uint8, (r, n))),
        del_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32),
        del_col=draw(hnp.arrays(np.uint16, d)),
        del_val=draw(hnp.arrays(np.uint16, d)),
        row_source=draw(hnp.arrays(np.uint8, r)),
        profile=draw(hnp.arrays(np.float32, (n, 22), elements=FLOAT32)),
        num_seq_full=r + draw(st.integers(0, 100)),
    )


def assert_identical(found: object, expected: object) -> None:
    """Same types, shapes and bits, recursively."""
    # a chain may be one whose atoms are only now spread over their slots
    assert isinstance(found, type(expected))
    if isinstance(expected, np.ndarray):
        assert isinstance(found, np.ndarray)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    elif dataclasses.is_dataclass(expected):
        for item in dataclasses.fields(expected):
            assert_identical(getattr(found, item.name), getattr(expected, item.name))
    elif isinstance(expected, tuple):
        assert isinstance(found, tuple)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_identical(a, b)
    else:
        assert found == expected


@settings(max_examples=40, deadline=None, derandomize=True)
@given(records=st.lists(chains(), max_size=3), compression=COMPRESSION)
def test_chains_survive_a_file_bit_by_bit(records: list[ChainRecord], compression: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain-00000.arrow"
        with write_shard(path, "chain", compression) as shard:
            assert [shard.add(record) for record in records] == list(range(len(records)))
        file = ShardFile(path, "chain")
        assert file.num_rows == len(records)
        for row, record in enumerate(records):
            assert_identical(decode_chain(file.row(row)), record)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(records=st.lists(msas(), max_size=3), compression=COMPRESSION)
def test_alignments_survive_a_file_bit_by_bit(records: list[MsaRecord], compression: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "msa-00000.arrow"
        with write_shard(path, "msa", compression) as shard:
            for record in records:
                shard.add(record)
        file = ShardFile(path, "msa")
        for row, record in enumerate(records):
            assert_identical(decode_msa(file.row(row)), record)


def test_decoded_arrays_are_copies_that_may_be_changed(make_msa, tmp_path):
    with write_shard(tmp_path / "msa-00000.arrow", "msa") as shard:
        shard.add(make_msa())
    file = ShardFile(tmp_path / "msa-00000.arrow", "msa")
    decode_msa(file.row(0)).msa[:] = 0
    assert_identical(decode_msa(file.row(0)), make_msa())


def test_hash_depends_on_every_field(make_chain, make_msa):
    chain = make_chain()
    changes = {
        "chain_key": "1abc_B",
        "label_asym_id": "C",
        "auth_asym_id": "C",
        "seq_id": bytes(32),
        "method": "solution nmr",
        "origin": "distilled",
        "aatype": (chain.aatype + 1).astype(np.uint8),
        "positions": chain.positions + np.float32(1),
        "atom_mask": ~chain.atom_mask,
        "resolution": None,
        "release_date": datetime.date(1998, 4, 9),
        "cluster_id": None,
        "confidence": np.zeros(len(chain), np.float32),
    }
    assert changes.keys() == {f.name for f in dataclasses.fields(ChainRecord)}
    variants = [chain] + [dataclasses.replace(chain, **{k: v}) for k, v in changes.items()]
    hashes = [encode_chain(variant)["row_xxh3"][0].as_py() for variant in variants]
    assert len(set(hashes)) == len(variants)

    msa = make_msa()
    changes = {
        "seq_id": bytes(32),
        "msa": msa.msa[:, ::-1].copy(),
        "del_ptr": np.array([0] * len(msa.msa) + [len(msa.del_col)], np.uint32),
        "del_col": (msa.del_col + 1).astype(np.uint16),
        "del_val": (msa.del_val + 1).astype(np.uint16),
        "row_source": (msa.row_source + 1).astype(np.uint8),
        "profile": msa.profile + np.float32(1),
        "num_seq_full": 100,
    }
    assert changes.keys() == {f.name for f in dataclasses.fields(MsaRecord)}
    variants = [msa] + [dataclasses.replace(msa, **{k: v}) for k, v in changes.items()]
    hashes = [encode_msa(variant)["row_xxh3"][0].as_py() for variant in variants]
    assert len(set(hashes)) == len(variants)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"aatype": np.zeros(9, np.int64)}, r"aatype .*int64 \(9,\).*uint8"),
        ({"aatype": np.zeros(8, np.uint8)}, r"positions .*\(9, 37, 3\)"),
        ({"atom_mask": np.zeros((9, 14), bool)}, r"atom_mask .*\(9, 14\)"),
        ({"confidence": np.zeros(8, np.float32)}, "confidence"),
        ({"origin": "guessed"}, "'guessed'"),
        (
            {
                "positions": np.full((9, 37, 3), np.nan, np.float32),
                "atom_mask": np.ones((9, 37), bool),
            },
            r"333 observed atom\(s\)",
        ),
    ],
)
def test_inconsistent_chains_are_refused(make_chain, change, message):
    with pytest.raises(InputError, match=message) as caught:
        encode_chain(dataclasses.replace(make_chain(), **change))
    assert "1abc_A" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"msa": np.zeros((0, 9), np.uint8)}, r"shape \(0, 9\)"),
        ({"msa": np.zeros((5, 8), np.uint8)}, "profile"),
        ({"del_ptr": np.zeros(6, np.uint32)}, "del_ptr .*0 .*0"),
        ({"num_seq_full": 4}, "num_seq_full 4 .*5"),
    ],
)
def test_inconsistent_alignments_are_refused(make_msa, change, message):
    with pytest.raises(InputError, match=message):
        encode_msa(dataclasses.replace(make_msa(), **change))


def test_deletions_before_the_first_row_are_refused(make_msa):
    record = make_msa()
    end = record.del_ptr[-1]
    assert end > 0
    with pytest.raises(InputError, match=f"del_ptr .*{end}"):
        encode_msa(dataclasses.replace(record, del_ptr=np.full_like(record.del_ptr, end)))
