import numpy as np

from scalefold.config.schema import BlockDeletionConfig
from scalefold.features.sample_random import RandomKey, dropout_key, msa_random, sample_random

KEY = RandomKey("training", 5, 17)


def msa_draws(key=KEY, pass_index=0, rows=50, deletion=None):
    return msa_random(
        key, pass_index, num_rows=rows, num_clusters=8, num_res=20, block_deletion=deletion
    )


def test_same_key_same_draws_and_any_other_key_differs():
    first = msa_draws()
    for name, array in vars(msa_draws()).items():
        np.testing.assert_array_equal(array, getattr(first, name))
    others = [
        msa_draws(RandomKey("evaluation", 5, 17)),
        msa_draws(RandomKey("training", 6, 17)),
        msa_draws(RandomKey("training", 5, 18)),
        msa_draws(pass_index=1),
    ]
    for other in others:
        assert (other.row_order != first.row_order).any()
        assert (other.mask_position != first.mask_position).any()
        assert (other.mask_symbol != first.mask_symbol).any()


def test_row_order_is_a_permutation_without_the_query():
    np.testing.assert_array_equal(np.sort(msa_draws().row_order), np.arange(1, 50))
    assert len(msa_draws(rows=1).row_order) == 0


def test_block_starts_never_hit_the_query_and_reach_every_other_row():
    config = BlockDeletionConfig()
    starts = np.concatenate(
        [
            msa_draws(RandomKey("training", 0, d), rows=6, deletion=config).deletion_starts
            for d in range(200)
        ]
    )
    assert set(starts) == {1, 2, 3, 4, 5}
    assert len(msa_draws(rows=6, deletion=config).deletion_starts) == config.num_blocks


def test_no_blocks_where_off_or_only_the_query():
    assert len(msa_draws().deletion_starts) == 0
    assert len(msa_draws(deletion=BlockDeletionConfig(enabled=False)).deletion_starts) == 0
    assert len(msa_draws(rows=1, deletion=BlockDeletionConfig()).deletion_starts) == 0


def test_random_number_of_blocks_covers_zero_to_all():
    config = BlockDeletionConfig(randomize_num_blocks=True, num_blocks=3)
    counts = {
        len(msa_draws(RandomKey("training", 0, d), deletion=config).deletion_starts)
        for d in range(100)
    }
    assert counts == {0, 1, 2, 3}


def test_sample_draws():
    draws = [sample_random(RandomKey("training", 1, d), 20) for d in range(300)]
    np.testing.assert_array_equal(np.sort(draws[0].template_order), np.arange(20))
    for name in ("clamp", "crop_shift", "crop_start", "template_count"):
        values = np.asarray([getattr(d, name) for d in draws])
        assert 0 <= values.min() < values.max() < 1
        assert abs(values.mean() - 0.5) < 4 / np.sqrt(12 * 300)


def test_dropout_keys_are_distinct_63_bit_integers():
    keys = [dropout_key(RandomKey("training", 1, d), p) for d in range(100) for p in range(4)]
    assert len(set(keys)) == 400
    assert all(0 <= k < 2**63 for k in keys)
    assert max(keys) > 2**61
