import dataclasses
import datetime

import numpy as np
import pytest
import torch

from scalefold.config.schema import FeaturesConfig
from scalefold.features.sample_random import RandomKey, sample_random
from scalefold.features.template_features import align_templates, template_features
from scalefold.features.templates import select_templates, usable_templates

QUERY_DATE = datetime.date(2020, 3, 1)


@pytest.fixture(scope="module")
def templates(make_sample):
    return make_sample(length=40, templates=9).templates


def dated(template, date):
    hit, chain = template
    return hit, dataclasses.replace(chain, release_date=date)


def test_released_sixty_days_before_the_query(templates):
    last_day = QUERY_DATE - datetime.timedelta(days=60)
    dates = [last_day, last_day + datetime.timedelta(days=1), QUERY_DATE, None]
    candidates = [dated(t, d) for t, d in zip(templates, dates)]
    usable = usable_templates(candidates, QUERY_DATE, 60, 20)
    assert [hit for hit, _ in usable] == [candidates[0][0]]
    assert len(usable_templates(candidates, QUERY_DATE, 0, 20)) == 3


def test_query_without_a_date_gets_none(templates):
    assert usable_templates(templates, None, 60, 20) == []


def test_template_needs_five_aligned_atoms(templates):
    hit, chain = templates[0]
    mask = np.zeros_like(chain.atom_mask)
    mask[hit.t_idx[3], :4] = True
    mask[0] = True  # not aligned
    assert 0 not in hit.t_idx
    assert (
        usable_templates([(hit, dataclasses.replace(chain, atom_mask=mask))], QUERY_DATE, 0, 20)
        == []
    )
    mask[hit.t_idx[5], 0] = True
    assert usable_templates([(hit, dataclasses.replace(chain, atom_mask=mask))], QUERY_DATE, 0, 20)


def counts(templates, config, trials=4000):
    found = np.zeros(config.max_templates + 1)
    ranks = np.zeros(len(templates))
    order = {id(hit): rank for rank, (hit, _) in enumerate(templates)}
    for d in range(trials):
        draws = sample_random(RandomKey("training", 3, d), config.template_pool)
        chosen = [order[id(hit)] for hit, _ in select_templates(templates, draws, config)]
        assert len(set(chosen)) == len(chosen)
        found[len(chosen)] += 1
        ranks[chosen] += 1
    return found / trials, ranks / trials


def test_alphafold_number_of_templates(templates):
    """min(U{0..9}, 4): four of them in 6 of 10 cases."""
    found, ranks = counts(templates, FeaturesConfig())
    np.testing.assert_allclose(found, [0.1, 0.1, 0.1, 0.1, 0.6], atol=0.035)
    # all hits alike: E[k] / 9
    np.testing.assert_allclose(ranks, 3 / 9, atol=0.035)


def test_mlperf_number_of_templates(templates):
    found, ranks = counts(templates, FeaturesConfig(template_draw="mlperf"))
    np.testing.assert_allclose(found, 0.2, atol=0.03)
    np.testing.assert_allclose(ranks, 2 / 9, atol=0.035)


def test_only_the_pool_is_drawn_from(templates):
    _, ranks = counts(templates, FeaturesConfig(template_pool=3), trials=500)
    assert (ranks[:3] > 0).all()
    assert (ranks[3:] == 0).all()


def test_features_by_hand(templates):
    features = template_features(align_templates(templates[:3], np.arange(0, 40)))
    for slot, (hit, chain) in enumerate(templates[:3]):
        aligned = dict(zip(hit.q_idx.tolist(), hit.t_idx.tolist()))
        for q in range(40):
            mask = features["template_all_atom_mask"][slot, q]
            if q in aligned:
                t = aligned[q]
                assert features["template_aatype"][slot, q] == chain.aatype[t]
                np.testing.assert_array_equal(mask, chain.atom_mask[t])
                np.testing.assert_array_equal(
                    features["template_all_atom_positions"][slot, q], chain.positions[t]
                )
            else:
                assert features["template_aatype"][slot, q] == 21
                assert mask.sum() == 0
                assert features["template_pseudo_beta_mask"][slot, q] == 0
                assert features["template_torsion_angles_mask"][slot, q].sum() == 0
                assert features["template_torsion_angles_sin_cos"][slot, q].abs().sum() == 0


def test_no_templates():
    features = template_features(align_templates([], np.arange(0, 40)))
    assert {tensor.shape[0] for tensor in features.values()} == {0}
    assert features["template_torsion_angles_sin_cos"].shape == (0, 40, 7, 2)


def test_only_templates_that_may_be_drawn_are_looked_at(templates):
    def unread():
        yield from templates[:2]
        raise AssertionError("a third template was looked at")

    assert usable_templates(unread(), QUERY_DATE, 0, 2) == list(templates[:2])


def test_templates_of_a_part_of_the_query(templates):
    whole = align_templates(templates[:3], np.arange(0, 40))
    part = align_templates(templates[:3], np.arange(7, 27))
    for tensor, expected in zip(part, whole, strict=True):
        assert torch.equal(tensor, expected[:, 7:27])


def test_the_first_residue_of_a_crop_has_no_angle_with_the_one_before(templates):
    """AlphaFold2 measures the angles of templates after the crop."""
    whole = template_features(align_templates(templates, np.arange(0, 40)))
    cropped = template_features(align_templates(templates, np.arange(8, 28)))
    mask, angles = "template_torsion_angles_mask", "template_torsion_angles_sin_cos"
    assert whole[mask][:, 8, :2].any()
    assert not cropped[mask][:, 0, :2].any()
    assert torch.equal(cropped[mask][:, 0, 2:], whole[mask][:, 8, 2:])
    assert torch.equal(cropped[mask][:, 1:], whole[mask][:, 9:28])
    assert torch.equal(cropped[angles][:, 1:], whole[angles][:, 9:28])
