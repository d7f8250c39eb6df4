import dataclasses

import numpy as np
import pytest
import torch

from scalefold.config.schema import FeaturesConfig
from scalefold.features.crop import Crop
from scalefold.features.masking import replacement_bounds
from scalefold.features.msa_features import msa_features
from scalefold.features.msa_rows import select_rows
from scalefold.features.packed_msa import PackedMsa
from scalefold.features.query import Query
from scalefold.features.raw_features import raw_pass
from scalefold.features.sample_random import MsaRandom, RandomKey, msa_random

LENGTH, ROWS = 40, 60
CONFIG = FeaturesConfig(max_msa_clusters=8, max_extra_msa=12)
WHOLE = Crop(0, LENGTH)


def query(msa, chain):
    return Query(chain.chain_key, chain.aatype, msa)


@pytest.fixture(scope="module")
def sample(make_sample):
    return make_sample(length=LENGTH, rows=ROWS)


@pytest.fixture(scope="module")
def alignment(sample):
    return PackedMsa.of(query(sample.msa, sample.chain)).unpack()


@pytest.fixture(scope="module")
def features_of(sample):
    """Features of passes whose decisions are given, by default over the sample's whole length."""

    def make(alignment, draws, window=WHOLE, profile=sample.msa.profile):
        bounds = torch.from_numpy(replacement_bounds(profile, CONFIG.masked_msa))
        rows = len(alignment.symbols)
        passes = [raw_pass(rows, draw, CONFIG, 0) for draw in draws]
        columns = torch.arange(window.start, window.stop)
        return msa_features(alignment, bounds, passes, columns, CONFIG)

    return make


def draws(index=0, block_deletion=CONFIG.block_deletion):
    return msa_random(
        RandomKey("training", 0, index),
        0,
        num_rows=ROWS,
        num_clusters=8,
        num_res=LENGTH,
        block_deletion=block_deletion,
    )


def test_crop_before_or_after_summarising_is_the_same(alignment, features_of):
    window = Crop(11, 20)
    for draw in (draws(0), draws(1, None)):
        whole = features_of(alignment, [draw])[0]
        cropped = features_of(alignment, [draw], window)[0]
        for name, tensor in cropped.items():
            assert torch.equal(tensor, whole[name][:, window.start : window.stop]), name


def test_clusters_look_at_columns_outside_the_crop(alignment, sample, features_of):
    window = Crop(11, 20)
    draw = draws(2, None)
    cropped = features_of(alignment, [draw], window)[0]
    inside = alignment.symbols[:, window.start : window.stop]
    short = alignment._replace(
        symbols=inside,
        deletion_row=alignment.deletion_row[:0],
        deletion_column=alignment.deletion_column[:0],
        deletion_count=alignment.deletion_count[:0],
    )
    short_draw = dataclasses.replace(
        draw,
        mask_position=draw.mask_position[:, window.start : window.stop],
        mask_symbol=draw.mask_symbol[:, window.start : window.stop],
    )
    profile = sample.msa.profile[window.start : window.stop]
    blind = features_of(short, [short_draw], Crop(0, window.size), profile)[0]
    assert torch.equal(cropped["true_msa"], blind["true_msa"])
    assert torch.equal(cropped["msa_feat"][..., :23], blind["msa_feat"][..., :23])
    assert not torch.equal(cropped["msa_feat"][..., 25:48], blind["msa_feat"][..., 25:48])


def test_passes_together_are_passes_apart(alignment, features_of):
    several = [draws(0), draws(1), draws(2, None)]
    together = features_of(alignment, several)
    for draw, features in zip(several, together):
        alone = features_of(alignment, [draw])[0]
        for name, tensor in features.items():
            assert torch.equal(tensor, alone[name]), name


def test_permuting_rows_permutes_nothing_but_the_draws(sample, alignment, features_of):
    """The same decisions about the same sequences give the same features in any row order."""
    draw = draws(3, None)
    order = np.concatenate([[0], 1 + np.random.default_rng(5).permutation(ROWS - 1)])
    rank = np.argsort(order)  # new row of each old row
    starts = sample.msa.del_ptr[:-1][order].astype(int)
    stops = sample.msa.del_ptr[1:][order].astype(int)
    places = np.concatenate([np.arange(a, b) for a, b in zip(starts, stops)])
    shuffled = dataclasses.replace(
        sample.msa,
        msa=sample.msa.msa[order],
        del_ptr=np.concatenate([[0], np.cumsum(stops - starts)]).astype(np.uint32),
        del_col=sample.msa.del_col[places],
        del_val=sample.msa.del_val[places],
    )
    moved = MsaRandom(
        draw.deletion_starts, rank[draw.row_order], draw.mask_position, draw.mask_symbol
    )
    expected = features_of(alignment, [draw])[0]
    again = PackedMsa.of(query(shuffled, sample.chain)).unpack()
    found = features_of(again, [moved])[0]
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_profile_and_deletions_by_hand(sample, alignment, dense_deletions, features_of):
    """Clusters and summaries computed row by row, from the masked centres that come out."""
    draw = draws(4)
    features = features_of(alignment, [draw])[0]
    choice = select_rows(ROWS, draw, CONFIG.max_msa_clusters, 0.3)
    masked = features["msa_feat"][..., :23].argmax(-1).numpy()
    msa, deletions = sample.msa.msa, dense_deletions(sample.msa)
    members: dict[int, list[int]] = {c: [] for c in range(len(choice.centres))}
    for row in choice.others:
        agreement = [(msa[row] == m)[m < 21].sum() for m in masked]
        members[int(np.argmax(agreement))].append(row)
    assert sum(map(len, members.values())) == len(choice.others) > 12
    for c, rows in members.items():
        stack = np.stack([masked[c], *msa[rows]])
        profile = np.stack([(stack == s).mean(0) for s in range(23)], -1)
        np.testing.assert_allclose(features["msa_feat"][c, :, 25:48], profile, atol=2e-6)
        mean = np.stack([deletions[choice.centres[c]], *deletions[rows]]).mean(0)
        squashed = 2 / np.pi * np.arctan(mean / 3)
        np.testing.assert_allclose(features["msa_feat"][c, :, 48], squashed, atol=2e-6)
        own = deletions[choice.centres[c]]
        np.testing.assert_array_equal(features["msa_feat"][c, :, 23], np.minimum(own, 1))
        np.testing.assert_allclose(
            features["msa_feat"][c, :, 24], 2 / np.pi * np.arctan(own / 3), atol=2e-7
        )
    extra = choice.others[: CONFIG.max_extra_msa]
    np.testing.assert_array_equal(features["extra_msa"], msa[extra])
    np.testing.assert_array_equal(features["extra_has_deletion"], np.minimum(deletions[extra], 1))
    np.testing.assert_allclose(
        features["extra_deletion_value"], 2 / np.pi * np.arctan(deletions[extra] / 3), atol=2e-7
    )


def test_bert_targets(alignment, features_of):
    features = features_of(alignment, [draws(5)])[0]
    masked = features["msa_feat"][..., :23].argmax(-1)
    changed = masked != features["true_msa"]
    assert changed.any()
    assert (features["bert_mask"][changed] == 1).all()
    assert (features["true_msa"] < 22).all()
    # the query is masked too
    queries = [features_of(alignment, [draws(i)])[0]["bert_mask"][0] for i in range(20)]
    assert 0.08 < torch.stack(queries).mean() < 0.22


def test_query_alone(sample, features_of):
    single = dataclasses.replace(
        sample.msa,
        msa=sample.msa.msa[:1],
        del_ptr=np.zeros(2, np.uint32),
        del_col=sample.msa.del_col[:0],
        del_val=sample.msa.del_val[:0],
    )
    draw = msa_random(
        RandomKey("training", 0, 0),
        0,
        num_rows=1,
        num_clusters=1,
        num_res=LENGTH,
        block_deletion=CONFIG.block_deletion,
    )
    alignment = PackedMsa.of(query(single, sample.chain)).unpack()
    features = features_of(alignment, [draw])[0]
    assert features["msa_feat"].shape == (1, LENGTH, 49)
    assert features["extra_msa"].shape == (0, LENGTH)
    one_hot = features["msa_feat"][..., :23]
    torch.testing.assert_close(features["msa_feat"][..., 25:48], one_hot, rtol=2e-6, atol=0)
