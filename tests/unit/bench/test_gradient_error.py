from __future__ import annotations

import torch

from scalefold.bench.gradient_error import agreement


def test_a_gradient_with_an_error_like_anothers_agrees() -> None:
    exact = torch.randn(10_000)
    first, second = (exact + 0.05 * torch.randn(10_000) for _ in range(2))
    found = agreement(first, second, exact)
    assert found["agrees"]
    assert found["apart"] > found["error_of_one"]  # in another direction


def test_one_that_is_counted_twice_or_lost_in_part_does_not() -> None:
    exact = torch.randn(10_000)
    first = exact + 0.05 * torch.randn(10_000)
    twice, lost = first.clone(), first.clone()
    twice[:200] *= 2
    lost[:200] = 0
    assert not agreement(first, 2 * first, exact)["agrees"]
    assert not agreement(first, twice, exact)["agrees"]
    assert not agreement(first, lost, exact)["agrees"]
