"""Buffers on the host, as an update sees them."""

from __future__ import annotations

import pytest
import torch

from scalefold.config.schema import OptimiserConfig
from scalefold.optim.averaging import WeightAverage
from scalefold.optim.on_host import on_device, to_host
from scalefold.optim.optimiser import Adam

CONFIG = OptimiserConfig()
ELSEWHERE = torch.device("cpu", 0)
"""Another device than a tensor's own, "cpu": buffers are copied there and back."""


def test_pieces_cover_buffers_and_their_changes_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalefold.optim.on_host._PIECE", 40)
    buffers = [to_host(torch.arange(100.0)), to_host(torch.zeros(100))]
    sizes = []
    for part, (first, second) in on_device(buffers, ELSEWHERE):
        sizes.append(len(first))
        second.add_(first).add_(torch.ones(100)[part])
    assert sizes == [40, 40, 20]
    assert torch.equal(buffers[0], torch.arange(100.0))
    assert torch.equal(buffers[1], torch.arange(100.0) + 1)


def test_what_is_there_already_comes_whole() -> None:
    buffer = torch.zeros(10)
    ((part, (same,)),) = on_device([buffer], buffer.device)
    assert same is buffer
    assert part == slice(None)


def test_updates_in_pieces_equal_updates_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def after_updates() -> list[torch.Tensor]:
        draws = torch.Generator().manual_seed(0)
        weights = torch.randn(1024, generator=draws)
        adam, average = Adam(weights, CONFIG), WeightAverage(weights, CONFIG)
        for _ in range(3):
            gradient = torch.randn(1024, generator=draws)
            adam.update(weights, gradient, torch.tensor(0.1).double(), torch.tensor(True))
            average.update(weights, torch.tensor(True))
        return [weights, adam.first_moment, adam.second_moment, average.average]

    whole = after_updates()
    monkeypatch.setattr("scalefold.optim.on_host._PIECE", 256)
    for module in ("optimiser", "averaging"):
        monkeypatch.setattr(
            f"scalefold.optim.{module}.on_device", lambda buffers, _: on_device(buffers, ELSEWHERE)
        )
    assert all(map(torch.equal, after_updates(), whole))
