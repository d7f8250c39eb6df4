import math

import pytest
import torch

from scalefold.model.confidence import expected_aligned_error, plddt, predicted_tm_score
from scalefold.model.heads import DistogramHead


def certain(index: torch.Tensor, bins: int) -> torch.Tensor:
    return 1e4 * torch.nn.functional.one_hot(index, bins).double()


def test_plddt_is_the_centre_of_a_certain_bin() -> None:
    logits = certain(torch.tensor([0, 24, 49]), 50)
    assert plddt(logits).tolist() == pytest.approx([1.0, 49.0, 99.0])
    assert plddt(torch.zeros(50)).item() == pytest.approx(50.0)


def test_expected_aligned_error_of_certain_bins() -> None:
    step = 31 / 62  # 63 edges from 0 to 31
    logits = certain(torch.tensor([[[0, 10], [62, 63]]]), 64)
    # the last bin is open; its centre is one step beyond that of the bin before
    expected = [[0.5 * step, 10.5 * step], [62.5 * step, 63.5 * step]]
    torch.testing.assert_close(
        expected_aligned_error(logits, 31.0)[0], torch.tensor(expected).double()
    )


def test_predicted_tm_score_written_out_and_padding() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 30, 30, 64).double()
    centers = (torch.arange(64).double() + 0.5) * 0.5
    for real in (30, 24, 12):
        mask = (torch.arange(30) < real).float()[None]
        d0 = 1.24 * (max(real, 19) - 15) ** (1 / 3) - 1.8
        terms = logits[0, :real, :real].softmax(-1) @ (1 / (1 + (centers / d0) ** 2))
        score = terms.mean(1).max()
        found = predicted_tm_score(logits, mask, 31.0)
        torch.testing.assert_close(found[0], score)


def test_predicted_tm_score_of_perfect_and_hopeless_predictions() -> None:
    mask = torch.ones(1, 100)
    best = predicted_tm_score(certain(torch.zeros(1, 100, 100).long(), 64), mask, 31.0)
    worst = predicted_tm_score(certain(torch.full((1, 100, 100), 63), 64), mask, 31.0)
    d0 = 1.24 * 85 ** (1 / 3) - 1.8
    assert best.item() == pytest.approx(1 / (1 + (0.25 / d0) ** 2))
    assert worst.item() == pytest.approx(1 / (1 + (31.75 / d0) ** 2))
    assert math.isclose(best.item(), 1.0, abs_tol=0.01)


def test_distogram_is_symmetric() -> None:
    head = DistogramHead(4, 64)
    torch.nn.init.normal_(head.linear.weight)
    logits = head(torch.randn(2, 5, 5, 4))
    assert torch.equal(logits, logits.transpose(1, 2))
