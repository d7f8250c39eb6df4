import numpy as np
import pyarrow as pa
import pytest

from scalefold.config.schema import SamplingConfig
from scalefold.errors import InputError
from scalefold.loader.sampler import TrainingSampler

ROWS = [
    # key, split, length, resolution, cluster, cluster size, most frequent residue
    ("1aaa_A", "train", 100, 1.5, "a", 1, 0.2),
    ("1bbb_A", "train", 300, 8.99, "b", 4, 0.8),
    ("1ccc_A", "train", 700, None, "b", 4, 0.1),
    ("1ddd_A", "train", 900, 9.0, "c", 1, 0.1),
    ("1eee_A", "train", 80, 2.0, "d", 1, 0.81),
    ("1fff_A", "train", 256, 3.0, None, 1, 0.1),
    ("1ggg_A", "validation", 256, 3.0, "e", 1, 0.1),
    ("1hhh_A", "template", 256, 3.0, "f", 1, 0.1),
]
COLUMNS = (
    "chain_key", "split", "length", "resolution", "cluster_id", "cluster_size",
    "max_single_residue_fraction", "origin",
)  # fmt: skip
DISTILLED = [
    ("distilled_a", "train", 256, None, None, 1, 0.1, "distilled"),
    ("distilled_b", "train", 512, None, None, 1, 0.1, "distilled"),
    ("distilled_c", "train", 512, None, None, 1, 0.9, "distilled"),
]


def index(rows=ROWS):
    types = [pa.string(), pa.string(), pa.int32(), pa.float64(), pa.string(), pa.int32()]
    schema = pa.schema(list(zip(COLUMNS, [*types, pa.float64(), pa.string()])))
    complete = [dict(zip(COLUMNS, (*row, "experimental")[:8])) for row in rows]
    return pa.Table.from_pylist(complete, schema=schema)


def test_filters_and_their_counts():
    sampler = TrainingSampler(index(), SamplingConfig(), 0)
    assert sampler.keys == ["1aaa_A", "1bbb_A", "1ccc_A", "1fff_A"]
    assert sampler.removed == {
        "unknown resolution": 0,
        "resolution of 9 Å or worse": 1,
        "more than 80% of one residue type": 1,
        "unknown cluster": 0,
        "sampling.distilled_share 0": 0,
    }
    strict = SamplingConfig(allow_unknown_resolution=False, require_cluster=True)
    sampler = TrainingSampler(index(), strict, 0)
    assert sampler.keys == ["1aaa_A", "1bbb_A"]
    assert list(sampler.removed.values()) == [1, 1, 1, 1, 0]


def test_says_how_many_chains_the_filters_leave():
    assert str(TrainingSampler(index(), SamplingConfig(), 0)) == (
        "4 of 6 train chains are drawn (removed by resolution of 9 Å or worse: 1, more than 80% "
        "of one residue type: 1)"
    )
    sampler = TrainingSampler(index(ROWS[:2]), SamplingConfig(), 0)
    assert str(sampler) == "2 of 2 train chains are drawn (none removed)"


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("alphafold", [0.5, 300 / 512 / 4, 1 / 4, 0.5]),
        ("mlperf", [0.5, 300 / 512 / 2, 1 / 2, 0.5]),
        ("uniform", [1, 1, 1, 1]),
    ],
)
def test_weights(weights, expected):
    sampler = TrainingSampler(index(), SamplingConfig(weights=weights), 0)
    expected = np.asarray(expected) / sum(expected)
    np.testing.assert_allclose(sampler.probabilities, expected, rtol=1e-12)
    draws = 20_000
    keys = [sampler.key(d) for d in range(draws)]
    found = np.asarray([keys.count(k) for k in sampler.keys]) / draws
    np.testing.assert_allclose(found, expected, atol=4.5 * np.sqrt(0.25 / draws))


def test_a_draw_is_a_pure_function_of_seed_and_index():
    sampler = TrainingSampler(index(), SamplingConfig(), 5)
    forwards = [sampler.key(d) for d in range(200)]
    other = TrainingSampler(index(ROWS[::-1]), SamplingConfig(), 5)
    backwards = [other.key(d) for d in reversed(range(200))]
    assert forwards == backwards[::-1]
    assert forwards != [TrainingSampler(index(), SamplingConfig(), 6).key(d) for d in range(200)]
    assert sampler.key(10**12) in sampler.keys


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75, 1.0])
def test_predicted_structures_are_drawn_with_their_share(share):
    # What an experiment has, resolution and cluster, is not asked of them.
    strict = {"allow_unknown_resolution": False, "require_cluster": True}
    config = SamplingConfig(distilled_share=share, **strict)
    sampler = TrainingSampler(index(ROWS + DISTILLED), config, 0)
    alone = TrainingSampler(index(), SamplingConfig(**strict), 0)
    found = dict(zip(sampler.keys, sampler.probabilities))
    expected = {key: (1 - share) * p for key, p in zip(alone.keys, alone.probabilities)}
    expected |= {"distilled_a": share / 3, "distilled_b": 2 * share / 3}
    assert found == pytest.approx({key: p for key, p in expected.items() if p}, rel=1e-12)
    draws = 4000
    drawn = sum(sampler.key(d).startswith("distilled") for d in range(draws))
    assert abs(drawn / draws - share) <= 4.5 * np.sqrt(share * (1 - share) / draws)


def test_without_a_share_predicted_structures_change_no_draw():
    alone = TrainingSampler(index(), SamplingConfig(), 3)
    beside = TrainingSampler(index(ROWS + DISTILLED), SamplingConfig(), 3)
    assert [alone.key(d) for d in range(300)] == [beside.key(d) for d in range(300)]


def test_a_share_of_what_is_not_there_is_refused():
    with pytest.raises(InputError, match="no distilled chain"):
        TrainingSampler(index(), SamplingConfig(distilled_share=0.75), 0)
    with pytest.raises(InputError, match="no experimental chain"):
        TrainingSampler(index(DISTILLED), SamplingConfig(distilled_share=0.75), 0)


def test_no_chain_left_says_why():
    with pytest.raises(InputError, match=r"9 Å.*1"):
        TrainingSampler(index(ROWS[3:4]), SamplingConfig(), 0)
    with pytest.raises(InputError, match="'train'"):
        TrainingSampler(index(ROWS[6:]), SamplingConfig(), 0)


def test_duplicate_key():
    with pytest.raises(InputError, match="1aaa_A"):
        TrainingSampler(index(ROWS + ROWS[:1]), SamplingConfig(), 0)
