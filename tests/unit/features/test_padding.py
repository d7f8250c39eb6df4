from __future__ import annotations

import pytest
import torch
from tests.example import example_features

from scalefold.errors import InputError
from scalefold.features.padding import pad, pad_to_degree, padded_sizes

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


def test_padding_follows_the_contract() -> None:
    features = {
        "aatype": torch.arange(2, 7)[None],
        "all_atom_positions": torch.rand(1, 5, 37, 3),
        "msa_feat": torch.rand(1, 3, 5, 49),
        "template_mask": torch.ones(1, 2),
        "resolution": torch.tensor([2.0]),
    }
    padded = pad(features, {"N": 8, "S": 4, "T": 3})
    assert padded["aatype"].tolist() == [[2, 3, 4, 5, 6, 0, 0, 0]]
    assert padded["all_atom_positions"].shape == (1, 8, 37, 3)
    assert torch.equal(padded["msa_feat"][:, :3, :5], features["msa_feat"])
    assert padded["msa_feat"][:, 3:].abs().sum() == 0
    assert padded["msa_feat"][:, :, 5:].abs().sum() == 0
    assert padded["template_mask"].tolist() == [[1, 1, 0]]
    assert padded["resolution"].item() == 2.0


def test_what_is_too_large_is_an_error() -> None:
    with pytest.raises(InputError, match=r"'aatype' .*10 .*8"):
        pad({"aatype": torch.arange(10)[None]}, {"N": 8})
