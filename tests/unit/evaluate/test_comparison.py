from __future__ import annotations

import dataclasses

import pytest
import torch

from scalefold.errors import InputError
from scalefold.evaluate.metrics import Comparison


def test_coordinates_behind_a_false_mask_are_not_looked_at(compare):
    comparison = compare("3u8v_A", "noise:1")
    poisoned = comparison.predicted.masked_fill(~comparison.predicted_mask[..., None], torch.nan)
    again = dataclasses.replace(comparison, predicted=poisoned)
    assert torch.equal(again.predicted, comparison.predicted)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_coordinate_that_is_not_finite_is_an_error_that_names_the_residue(compare, bad):
    comparison = compare("5pti_A", "noise:1")
    predicted = comparison.predicted.clone()
    predicted[7, 1, 2] = bad
    with pytest.raises(InputError, match="residue 7"):
        dataclasses.replace(comparison, predicted=predicted)


def test_shapes_must_agree():
    with pytest.raises(InputError, match=r"true_mask .*\(3, 14\).*\(3, 37\)"):
        Comparison(
            torch.zeros(3, 37, 3),
            torch.zeros(3, 37),
            torch.zeros(3, 37, 3),
            torch.zeros(3, 14),
            torch.zeros(3),
        )
