import dataclasses

import numpy as np
import pytest
import torch

from scalefold.errors import InputError
from scalefold.features.packed_msa import (
    PackedMsa,
    deletion_matrix,
    deletion_sums,
)
from scalefold.features.query import Query

COLUMNS = [[*range(25)], [*range(4, 13)], [24], [2, 3, 4, 9, 17, 24]]
"""The whole chain, crops, and residues in several pieces."""


def query(msa, chain):
    return Query(chain.chain_key, chain.aatype, msa)


@pytest.fixture(scope="module")
def sample(make_sample):
    return make_sample(length=25, rows=40)


@pytest.fixture(scope="module")
def alignment(sample):
    return PackedMsa.of(query(sample.msa, sample.chain)).unpack()


@pytest.mark.parametrize("columns", COLUMNS)
def test_deletions_of_rows(sample, alignment, columns, dense_deletions):
    rows = torch.tensor([5, 0, 39, 17, 18])
    found = deletion_matrix(alignment, rows, torch.tensor(columns))
    expected = dense_deletions(sample.msa)[rows][:, columns]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("columns", COLUMNS)
def test_deletion_sums_over_groups(sample, alignment, columns, dense_deletions):
    group = torch.from_numpy(np.random.default_rng(0).integers(-1, 4, 40))
    found = deletion_sums(alignment, group, 5, torch.tensor(columns))
    dense = dense_deletions(sample.msa)[:, columns]
    for g in range(5):
        np.testing.assert_array_equal(found[g], dense[group.numpy() == g].sum(0))


def test_width_must_be_the_sequence(sample, make_chain):
    with pytest.raises(InputError, match=r"1abc_A: .*25 .*26"):
        PackedMsa.of(query(sample.msa, make_chain(length=26)))


def test_first_row_must_be_the_sequence(sample):
    msa = sample.msa.msa.copy()
    msa[0, 3] = (msa[0, 3] + 1) % 20
    wrong = dataclasses.replace(sample.msa, msa=msa)
    with pytest.raises(InputError, match="1abc_A"):
        PackedMsa.of(query(wrong, sample.chain))


def test_unpacked_deletions_are_the_stored_ones(sample, alignment, dense_deletions):
    """Counts above 32,767 do not fit into torch's signed numbers."""
    rows, columns = dense_deletions(sample.msa).nonzero()
    np.testing.assert_array_equal(alignment.deletion_row, rows)
    np.testing.assert_array_equal(alignment.deletion_column, columns)
    large = dataclasses.replace(sample.msa, del_val=np.full_like(sample.msa.del_val, 65_535))
    unpacked = PackedMsa.of(query(large, sample.chain)).unpack()
    assert (unpacked.deletion_count == 65_535).all()
