"""What is there after the first step is not searched for garbage; what comes later is."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.train.quietly import train_quietly

from scalefold.config import Config
from scalefold.engine.garbage_collection import present_objects_spared
from scalefold.train.metrics import MetricsLog


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_only_what_is_there_is_spared_and_only_until_the_end() -> None:
    early = _Cycle()
    with present_objects_spared():
        late = _Cycle()
        gone = [weakref.ref(early), weakref.ref(late)]
        del early, late
        gc.collect()
        assert [ref() is None for ref in gone] == [False, True]
    gc.collect()
    assert gone[0]() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_training_on_a_gpu_spares_them_from_its_first_step_to_its_end(
    micro: Config, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, spared = MetricsLog.write, []

    def noticing(log: MetricsLog, record: dict[str, Any]) -> None:
        write(log, record)
        spared.append(gc.get_freeze_count() > 0)

    monkeypatch.setattr(MetricsLog, "write", noticing)
    train_quietly(micro, shards, tmp_path, device=torch.device("cuda"))
    assert spared == [True] * 6  # the first step's numbers are read when the second is under way
    assert gc.get_freeze_count() == 0
