import dataclasses

import numpy as np
import pytest
import torch
from tests.example import check_contract

from scalefold.config.schema import FeaturesConfig
from scalefold.errors import InputError
from scalefold.features.contract import ALL_FEATURES, INPUT_FEATURES
from scalefold.features.pipeline import (
    features_of,
    prediction_features,
    raw_training_features,
    selected_features,
    training_features,
)
from scalefold.features.query import Query
from scalefold.features.selection import prediction_selection, training_selection

CONFIG = FeaturesConfig(crop_size=24, max_msa_clusters=6, max_extra_msa=10, max_templates=3)
SIZES = {"B": 1, "N": 24, "S": 6, "E": 10, "T": 3}


@pytest.fixture(scope="module")
def sample(make_sample):
    return make_sample(length=40, rows=50)


def equal(first, second):
    assert first.keys() == second.keys()
    return [name for name in first if not torch.equal(first[name], second[name])]


def test_contract(sample):
    for features in training_features(sample, CONFIG, 0, 0, range(2)):
        check_contract(features, SIZES)
        assert all(torch.isfinite(t).all() for t in features.values() if t.is_floating_point())


def test_draws_are_pure(sample):
    first = training_features(sample, CONFIG, 3, 8, range(3))
    again = training_features(sample, CONFIG, 3, 8, [2, 0])
    assert equal(first[2], again[0]) == []
    assert equal(first[0], again[1]) == []
    assert equal(first[0], training_features(sample, CONFIG, 3, 9, [0])[0]) != []
    assert equal(first[0], training_features(sample, CONFIG, 4, 8, [0])[0]) != []


def test_passes_differ_in_pass_features_alone(sample):
    for draw in range(5):
        first, second = training_features(sample, CONFIG, 0, draw, range(2))
        differing = set(equal(first, second))
        assert {"msa_feat", "extra_msa", "dropout_key"} <= differing
        assert all(ALL_FEATURES[name].per_pass for name in differing)
        # shared, not copied
        assert first["all_atom_positions"] is second["all_atom_positions"]


def test_target_feat_is_never_masked(sample):
    for features in training_features(sample, CONFIG, 0, 1, range(4)):
        start = int(features["residue_index"][0, 0])
        expected = sample.chain.aatype[start : start + 24]
        np.testing.assert_array_equal(features["target_feat"][0, :, 1:].argmax(-1), expected)
        assert (features["target_feat"][0, :, 0] == 0).all()
        assert (features["target_feat"].sum(-1) == 1).all()


def test_padding_never_changes_real_residues(make_sample):
    """A chain shorter than the crop: larger crops only add zeros."""
    short = make_sample(length=20, rows=50)
    tight = CONFIG.model_copy(update={"crop_size": 20})
    for draw in range(3):
        exact = training_features(short, tight, 0, draw, [0, 1])
        padded = training_features(short, CONFIG, 0, draw, [0, 1])
        for first, second in zip(exact, padded):
            for name, spec in ALL_FEATURES.items():
                if "N" not in spec.dims:
                    assert torch.equal(first[name], second[name]), name
                    continue
                axis = spec.dims.index("N")
                assert torch.equal(first[name], second[name].narrow(axis, 0, 20)), name
                assert second[name].narrow(axis, 20, 4).abs().sum() == 0, name


def test_masks_say_what_is_padding(make_sample):
    features = training_features(make_sample(length=20, rows=4), CONFIG, 0, 0, [0])[0]
    assert features["seq_mask"][0].tolist() == [1] * 20 + [0] * 4
    rows = features["msa_mask"][0].amax(-1)
    assert 1 <= rows.sum() <= 4
    assert torch.equal(features["msa_mask"][0], rows[:, None] * features["seq_mask"])
    assert features["seq_length"].item() == 20
    assert features["msa_feat"][0][rows == 0].abs().sum() == 0


def test_template_slots(sample):
    numbers = set()
    for draw in range(40):
        features = training_features(sample, CONFIG, 0, draw, [0])[0]
        filled = features["template_mask"][0]
        count = int(filled.sum())
        numbers.add(count)
        assert filled.tolist() == [1] * count + [0] * (3 - count)
        for name in INPUT_FEATURES:
            if name.startswith("template_"):
                assert features[name][0, count:].abs().sum() == 0, name
    assert numbers == {0, 1, 2, 3}


def test_clamping_rate(make_sample):
    tiny = make_sample(length=6, rows=2, templates=0)
    values = [
        training_features(tiny, CONFIG, 0, draw, [0])[0]["use_clamped_fape"].item()
        for draw in range(300)
    ]
    assert set(values) == {0.0, 1.0}
    assert abs(np.mean(values) - 0.9) < 4.5 * np.sqrt(0.9 * 0.1 / 300)


def test_moving_the_structure_moves_nothing_that_the_model_reads(sample):
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0]
    rotation = (rotation * torch.linalg.det(rotation).sign()).numpy()
    moved_chain = dataclasses.replace(
        sample.chain,
        positions=(sample.chain.positions @ rotation.T + 3.0) * sample.chain.atom_mask[..., None],
    )
    moved = dataclasses.replace(sample, chain=moved_chain)
    before = training_features(sample, CONFIG, 0, 0, [0])[0]
    after = training_features(moved, CONFIG, 0, 0, [0])[0]
    changed = set(equal(before, after))
    assert not changed & INPUT_FEATURES.keys()
    assert {"all_atom_positions", "backbone_rigid_tensor"} <= changed
    assert not {name for name in changed if name.endswith(("mask", "exists", "ambiguous"))}


def test_prediction_takes_the_whole_chain(sample):
    first, second = prediction_features(Query.of(sample), CONFIG, 0, 2)
    check_contract(first, {**SIZES, "N": 40}, INPUT_FEATURES)
    assert first["residue_index"][0].tolist() == list(range(40))
    assert first["msa_mask"].sum() == 6 * 40
    assert set(equal(first, second)) >= {"msa_feat", "extra_msa"}
    # the best templates, in order
    hit, chain = sample.templates[0]
    np.testing.assert_array_equal(
        first["template_aatype"][0, 0, torch.from_numpy(hit.q_idx).long()], chain.aatype[hit.t_idx]
    )
    assert first["template_mask"].sum() == 3


def test_a_prediction_reads_what_training_does_without_a_structure(sample):
    query = Query.of(sample)
    selection = prediction_selection(query, CONFIG, 0, 2)
    for alone, learnt in zip(
        prediction_features(query, CONFIG, 0, 2),
        selected_features(sample, selection, CONFIG),
        strict=True,
    ):
        assert alone.keys() == INPUT_FEATURES.keys()
        assert equal(alone, {name: learnt[name] for name in INPUT_FEATURES}) == []
        assert learnt["bert_mask"].sum() > 0
        assert learnt["use_clamped_fape"].item() == 1


def test_prediction_depends_on_seed_and_key_alone(sample):
    query = Query.of(sample)
    first = prediction_features(query, CONFIG, 0, 1)[0]
    assert equal(first, prediction_features(query, CONFIG, 0, 3)[0]) == []
    assert equal(first, prediction_features(query, CONFIG, 1, 1)[0]) != []
    renamed = dataclasses.replace(query, name="9xyz_B")
    assert "msa_feat" in equal(first, prediction_features(renamed, CONFIG, 0, 1)[0])


def test_prediction_deletes_no_blocks(make_sample):
    """All rows fit: every row must be there."""
    few = make_sample(length=20, rows=14)
    features = selected_features(few, prediction_selection(Query.of(few), CONFIG, 0, 1), CONFIG)[0]
    rows = torch.cat([features["true_msa"][0], features["extra_msa"][0, :8]])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, few.msa.msa.tolist()))


def test_unknown_resolution_is_zero(sample):
    unknown = dataclasses.replace(sample, chain=dataclasses.replace(sample.chain, resolution=None))
    assert training_features(unknown, CONFIG, 0, 0, [0])[0]["resolution"].item() == 0
    assert training_features(sample, CONFIG, 0, 0, [0])[0]["resolution"].item() == 2


def test_a_chain_without_atoms_is_an_error_that_names_it(sample):
    empty = dataclasses.replace(sample.chain, atom_mask=np.zeros_like(sample.chain.atom_mask))
    with pytest.raises(InputError, match="1abc_A"):
        training_features(dataclasses.replace(sample, chain=empty), CONFIG, 0, 0, [0])


def of_meaning(features):
    """Torsion angles only where their atoms are observed; elsewhere they are rounding."""
    masks = {
        "chi_angles_sin_cos": "chi_mask",
        "template_torsion_angles_sin_cos": "template_torsion_angles_mask",
        "template_alt_torsion_angles_sin_cos": "template_torsion_angles_mask",
    }
    return features | {name: features[name] * features[m][..., None] for name, m in masks.items()}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("length", "rows"), [(300, 700), (90, 5), (40, 1)])
def test_the_device_changes_nothing_but_rounding(make_sample, length, rows):
    sample = make_sample(length=length, rows=rows)
    config = FeaturesConfig(crop_size=256)
    on_cpu = training_features(sample, config, 0, 0, range(2), "cpu")
    on_gpu = training_features(sample, config, 0, 0, range(2), "cuda")
    for first, second in zip(map(of_meaning, on_cpu), map(of_meaning, on_gpu)):
        for name, tensor in first.items():
            other = second[name].cpu()
            if tensor.is_floating_point():
                # one rounding, of atan in float32 or of float64 to float32
                torch.testing.assert_close(other, tensor, atol=2e-7, rtol=2e-7, msg=name)
            else:
                assert torch.equal(other, tensor), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_host_never_waits_for_the_device(sample):
    selection = training_selection(sample, CONFIG, 0, 0, range(3))
    inputs = raw_training_features(sample, selection, CONFIG).to(torch.device("cuda"))
    features_of(inputs, CONFIG, 3)  # tables of constants are copied once
    torch.cuda.set_sync_debug_mode("error")
    try:
        features_of(inputs, CONFIG, 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_predicted_structure_is_learnt_where_it_is_confident(sample):
    """Of its alignment few rows are drawn, and no term that asks for a resolution is computed."""
    length = len(sample.chain)
    confidence = np.linspace(0, 100, length, dtype=np.float32)
    chain = dataclasses.replace(
        sample.chain, origin="distilled", confidence=confidence, resolution=None
    )
    predicted = dataclasses.replace(sample, chain=chain)
    distilled = CONFIG.distilled.model_copy(update={"min_plddt": 40.0, "max_msa_rows": 9})
    config = CONFIG.model_copy(update={"distilled": distilled})
    for draw in range(6):
        (found,) = training_features(predicted, config, 0, draw, [0])
        (same,) = training_features(sample, config, 0, draw, [0])
        start = int(found["residue_index"][0, 0])
        confident = torch.from_numpy(confidence[start : start + 24] >= 40.0)[:, None]
        assert torch.equal(found["all_atom_mask"][0], same["all_atom_mask"][0] * confident)
        assert torch.equal(found["backbone_rigid_mask"], found["all_atom_mask"][..., :3].amin(-1))
        assert found["resolution"].item() == 0
        assert same["resolution"].item() == 2
        # 6 centres, and of the 3 other rows all
        rows = found["extra_msa_mask"].amax(-1).sum()
        assert rows <= 3 < same["extra_msa_mask"].amax(-1).sum()
