from __future__ import annotations

import pytest
import torch

from scalefold.features.padding import pad_to_degree, padded_sizes
from scalefold.model.example import example_features

SIZES = {"B": 1, "N": 13, "S": 5, "E": 7, "T": 2}


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 8])
def test_rows_and_residues_become_multiples_with_the_template_rows(degree: int) -> None:
    sizes = padded_sizes(SIZES, degree, template_rows=2)
    assert sizes["N"] % degree == sizes["E"] % degree == (sizes["S"] + 2) % degree == 0
    assert all(0 <= sizes[dim] - SIZES[dim] < degree for dim in ("N", "S", "E"))
    assert (sizes["B"], sizes["T"]) == (1, 2)


def test_padding_is_masked_and_the_rest_stays() -> None:
    features = example_features(SIZES)
    padded = pad_to_degree(features, 4, template_rows=2)
    assert padded["msa_feat"].shape[1:3] == (6, 16)
    assert padded["template_pseudo_beta"].shape == (1, 2, 16, 3)
    for name, tensor in features.items():
        part = padded[name][tuple(slice(size) for size in tensor.shape)]
        assert torch.equal(part, tensor), name
    for name in ("seq_mask", "msa_mask", "extra_msa_mask"):
        assert padded[name].sum() == features[name].sum()


def test_a_cropped_chain_does_not_grow_by_the_padding() -> None:
    features = example_features(SIZES) | {"seq_length": torch.tensor([400])}
    assert pad_to_degree(features, 4, template_rows=2)["seq_length"].tolist() == [13]


def test_what_fits_is_not_copied() -> None:
    features = example_features({**SIZES, "N": 12, "S": 6, "E": 8})
    assert pad_to_degree(features, 4, template_rows=2) is features
