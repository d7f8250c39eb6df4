"""Snapshots: of their step to the bit, though the next update runs while they are taken."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from scalefold.checkpoint.snapshot import StateSnapshot
from scalefold.config import Config
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.loader.loader import TrainingLoader
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import TrainingParts, assemble

CPU = torch.device("cpu")


def _samples(config: Config, shards: Path, device: torch.device) -> list[list[Features]]:
    with TrainingLoader(ShardReader(shards), config, device) as loader:
        return next(loader).samples


def _separate_tensors(parts: TrainingParts) -> dict[str, Any]:
    """What a snapshot is to hold, the plain way."""
    state = {name: tensor.to(CPU, copy=True) for name, tensor in parts.state.tensors().items()}

    def by_name(part: str) -> dict[str, Tensor]:
        views = parts.parameters.by_name(state[part])
        return {name: view.clone() for name, view in views.items()}

    return {
        "weights": by_name("weights"),
        "averaged": by_name("averaged"),
        "optimiser": {
            "first_moment": by_name("first_moment"),
            "second_moment": by_name("second_moment"),
            "updates": state["updates"],
            "averaged_updates": state["averaged_updates"],
        },
    }


def _content(snapshot: StateSnapshot) -> dict[str, Any]:
    return {name: getattr(snapshot, name) for name in ("weights", "averaged", "optimiser")}


def _tensors(tree: dict[str, Any]) -> Iterator[Tensor]:
    for value in tree.values():
        yield from _tensors(value) if isinstance(value, dict) else [value]


def _file(content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def test_it_is_saved_byte_by_byte_as_separate_tensors_are(micro: Config, shards: Path) -> None:
    parts = assemble(micro, CPU)
    parts.step(_samples(micro, shards, CPU), 1e-3)
    snapshot = StateSnapshot(parts.state, parts.step.hold_update)
    snapshot.take()
    snapshot.wait()
    for name, expected in _separate_tensors(parts).items():
        assert _file(getattr(snapshot, name)) == _file(expected), name


def test_later_steps_do_not_change_it_until_it_is_taken_again(micro: Config, shards: Path) -> None:
    parts, samples = assemble(micro, CPU), _samples(micro, shards, CPU)
    snapshot, states = StateSnapshot(parts.state, parts.step.hold_update), []
    for _ in range(2):
        parts.step(samples, 1e-3)
        states.append(_separate_tensors(parts))
        snapshot.take()
        parts.step(samples, 1e-3)
        torch.testing.assert_close(_content(snapshot), states[-1], rtol=0, atol=0)
    assert not torch.equal(*(state["optimiser"]["updates"] for state in states))


def test_one_update_waits_for_what_holds_it(micro: Config, shards: Path) -> None:
    parts, samples = assemble(micro, CPU), _samples(micro, shards, CPU)
    before = {name: tensor.clone() for name, tensor in parts.state.tensors().items()}
    waits = []

    class Reading:
        def wait(self) -> None:
            torch.testing.assert_close(parts.state.tensors(), before, rtol=0, atol=0)
            assert parts.parameters.gradient.any()  # the passes have been made
            waits.append(self)

    parts.step.hold_update(cast(torch.cuda.Event, Reading()))
    for _ in range(2):
        parts.step(samples, 1e-3)
    assert len(waits) == 1
    assert not torch.equal(parts.parameters.master, before["weights"])


def test_a_host_without_the_memory_is_an_error_that_says_so(
    micro: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = assemble(micro, CPU)

    def no_memory(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty_like", no_memory)
    with pytest.raises(InputError, match="out of memory"):
        StateSnapshot(parts.state, parts.step.hold_update)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_next_update_waits_for_a_copy_that_is_late(
    micro: Config, shards: Path
) -> None:
    device = torch.device("cuda")
    parts, samples = assemble(micro, device), _samples(micro, shards, device)
    snapshot = StateSnapshot(parts.state, parts.step.hold_update)
    assert all(tensor.is_pinned() for tensor in _tensors(_content(snapshot)))
    parts.step(samples, 1e-3)  # compiles and captures, which takes longer than a late copy
    expected = _separate_tensors(parts)
    with torch.cuda.stream(snapshot._stream):
        torch.cuda._sleep(1_000_000_000)  # about half a second
    snapshot.take()
    parts.step(samples, 1e-3)
    assert not snapshot._copied.query()
    snapshot.wait()
    torch.testing.assert_close(_content(snapshot), expected, rtol=0, atol=0)
    assert parts.state.optimiser.updates == expected["optimiser"]["updates"] + 1
