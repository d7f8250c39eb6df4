from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from scalefold.parallel.launcher_store import LauncherStore
from scalefold.parallel.ranks import MeshRanks


@pytest.fixture
def ranks() -> Iterator[MeshRanks]:
    """The first of two ranks, whose second never comes."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        yield MeshRanks(DeviceMesh.from_group(dist.group.WORLD, "cpu"), LauncherStore(store, 0, 2))
    finally:
        dist.destroy_process_group()


class Event:
    """A GPU's event that is reached after so many questions."""

    def __init__(self, questions: float) -> None:
        self.left = questions

    def query(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_gpu_that_waits_for_ever_has_the_silent_rank_named(
    ranks: MeshRanks, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    never: Any = Event(float("inf"))
    ranks.set_timeout(0.1)
    with pytest.raises(SystemExit):
        ranks.synchronize(never)
    assert "rank 1 gave no sign" in caplog.text


def test_a_gpu_may_take_as_long_as_the_limit(
    ranks: MeshRanks, caplog: pytest.LogCaptureFixture
) -> None:
    soon: Any = Event(5)
    ranks.synchronize(soon)
    assert soon.left < 0
    assert not caplog.text
