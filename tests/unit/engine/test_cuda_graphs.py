"""A captured and replayed step against the same step launched kernel by kernel."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from scalefold.config import make_config
from scalefold.config.load import merge
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.loader.loader import TrainingLoader
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import TrainingParts, assemble
from scalefold.train.step_numbers import Readback

gpu = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _determinism_is_put_back() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def _parts(tree: dict[str, Any], **training: Any) -> TrainingParts:
    settings = {"training": {**training, "deterministic": True}}
    parts = assemble(make_config(merge(tree, settings)), torch.device("cuda"))
    generator = torch.Generator().manual_seed(3)
    for view in parts.parameters.by_name(parts.parameters.master).values():
        view += 0.05 * torch.randn(view.shape, generator=generator).to(view)
    parts.parameters.update_working_copy()
    return parts


def _batches(tree: dict[str, Any], shards: Path) -> list[list[list[Features]]]:
    config = make_config(tree)
    with TrainingLoader(ShardReader(shards), config, "cuda") as loader:
        return [batch.samples for batch in loader]


@gpu
@needs_cuda
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("recomputation", "compile"),
    [("none", False), ("selective", False), ("full", False), ("none", True)],
)
def test_replayed_steps_equal_eager_ones(
    micro_tree: dict[str, Any], shards: Path, precision: str, recomputation: str, compile: bool
) -> None:
    batches = _batches(micro_tree, shards)
    assert {len(samples[0]) for samples in batches} == {1, 2}
    settings = {"precision": precision, "recomputation": recomputation, "compile": compile}
    _replayed_equals_eager(micro_tree, batches, **settings)


@gpu
@needs_cuda
def test_replayed_steps_equal_eager_ones_without_templates(
    micro_tree: dict[str, Any], shards: Path
) -> None:
    tree = merge(micro_tree, {"model": {"template": {"enabled": False}}})
    _replayed_equals_eager(tree, _batches(tree, shards))


def _replayed_equals_eager(
    tree: dict[str, Any], batches: list[list[list[Features]]], **settings: Any
) -> None:
    eager = _parts(tree, cuda_graphs="off", **settings)
    graphed = _parts(tree, cuda_graphs="on", **settings)
    for samples in batches:
        ours, reference = graphed.step(samples, 1e-3), eager.step(samples, 1e-3)
        assert bool(reference.finite)
        assert ours.names == reference.names
        assert torch.equal(ours.per_sample, reference.per_sample)
        assert torch.equal(ours.gradient_norm, reference.gradient_norm)
    assert torch.equal(graphed.parameters.master, eager.parameters.master)
    assert torch.equal(graphed.state.average.average, eager.state.average.average)


@gpu
@needs_cuda
def test_new_shapes_are_captured_anew_and_logged(
    micro_tree: dict[str, Any], shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shorter = merge(micro_tree, {"features": {"crop_size": 12}})
    eager = _parts(micro_tree, cuda_graphs="off")
    graphed = _parts(micro_tree, cuda_graphs="on")
    for tree in (micro_tree, shorter, micro_tree):
        samples = _batches(tree, shards)[0]
        ours, reference = graphed.step(samples, 1e-3), eager.step(samples, 1e-3)
        assert torch.equal(ours.per_sample, reference.per_sample)
    captured = [record.message for record in caplog.records if "captured" in record.message]
    assert ["16 residues" in captured[0], "12 residues" in captured[1]] == [True, True]
    assert len(captured) == 2


@gpu
@needs_cuda
@pytest.mark.parametrize("cuda_graphs", ["on", "off"])
def test_the_host_never_waits_in_a_step(
    micro_tree: dict[str, Any], shards: Path, cuda_graphs: str
) -> None:
    samples = max(_batches(micro_tree, shards), key=lambda samples: len(samples[0]))
    parts = _parts(micro_tree, cuda_graphs=cuda_graphs)
    Readback(parts.step(samples, 1e-3)).get()  # compiles, captures
    torch.cuda.set_sync_debug_mode("error")
    try:
        readback = Readback(parts.step(samples, 1e-3))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert readback.get().finite


def test_graphs_where_there_is_no_gpu_are_refused(micro_tree: dict[str, Any]) -> None:
    config = make_config(merge(micro_tree, {"training": {"cuda_graphs": "on"}}))
    with pytest.raises(InputError, match=r"training\.cuda_graphs.*cpu"):
        assemble(config, torch.device("cpu"))
