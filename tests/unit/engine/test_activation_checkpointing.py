"""Activation checkpointing changes memory, not results."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.example import example_features, set_example_weights
from torch import Tensor

from scalefold.config import make_config
from scalefold.config.load import merge
from scalefold.config.model import ModelConfig
from scalefold.config.schema import Config
from scalefold.engine.activation_checkpointing import (
    ActivationCheckpointing,
    training_model,
)
from scalefold.engine.selective_checkpointing import PROJECTIONS
from scalefold.loader.loader import TrainingLoader
from scalefold.model.alphafold import AlphaFold
from scalefold.model.assembly import Assembly
from scalefold.model.contract import Previous
from scalefold.ops import TORCH, Ops
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import assemble

SIZES = {"B": 1, "N": 9, "S": 3, "E": 4, "T": 2}


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: function(*arguments)


OTHERS = replace(TORCH, **{f.name: wrapped(getattr(TORCH, f.name)) for f in fields(TORCH)})
"""Operations that pass for kernels: they are not known to be plain torch."""


def model_of(config: ModelConfig, checkpointing: ActivationCheckpointing, ops: Ops) -> AlphaFold:
    model = training_model(config, Assembly(ops), checkpointing)
    set_example_weights(model)
    return model


def deep(micro: Config) -> ModelConfig:
    blocks = {"model": {"evoformer": {"num_blocks": 5}}}
    return make_config(merge(micro.model_dump(mode="json"), blocks)).model


def loss_of(model: AlphaFold, config: ModelConfig) -> Tensor:
    features, like = example_features(SIZES), next(model.parameters())
    zeros, templates = Previous.zeros(1, SIZES["N"], config, like), model.embed_templates(features)
    outputs, _ = model(features, zeros, templates)
    return outputs.pair.square().mean() + outputs.positions.square().mean()


def gradients(
    config: ModelConfig, checkpointing: ActivationCheckpointing, ops: Ops = TORCH
) -> dict[str, Tensor]:
    model = model_of(config, checkpointing, ops)
    loss_of(model, config).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("ops", [TORCH, OTHERS], ids=["torch", "kernels"])
@pytest.mark.parametrize("checkpointing", ["selective", "full", "offload"])
def test_gradients_are_the_same_to_the_bit_with_dropout_on(
    micro: Config, checkpointing: ActivationCheckpointing, ops: Ops
) -> None:
    plain, recomputed = gradients(micro.model, "none"), gradients(micro.model, checkpointing, ops)
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(recomputed[name], gradient, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("checkpointing", ["selective", "full", "offload"])
def test_names_of_parameters_stay(micro: Config, checkpointing: ActivationCheckpointing) -> None:
    model = model_of(micro.model, checkpointing, TORCH)
    assert list(model.state_dict()) == list(AlphaFold(micro.model).state_dict())


class Recorder:
    """Operations that note each result of a projection, weakly."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Any]] = []
        self.ops = replace(
            OTHERS, **{name: self._noting(getattr(TORCH, name)) for name in PROJECTIONS}
        )

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: Tensor, *arguments: Any) -> Any:
            results = function(x, *arguments)
            fresh = [t.untyped_storage() for t in results if t.data_ptr() != x.data_ptr()]
            self.made += [weakref.ref(memory) for memory in fresh]
            return results

        return call

    def alive(self) -> int:
        gc.collect()
        return sum(memory() is not None for memory in self.made)


def test_projections_are_let_go_after_forward_and_after_backward(micro: Config) -> None:
    alive = {}
    modes: tuple[ActivationCheckpointing, ...] = ("none", "selective")
    for checkpointing in modes:
        recorder = Recorder()
        model = model_of(micro.model, checkpointing, recorder.ops)
        loss = loss_of(model, micro.model)
        alive[checkpointing], made = recorder.alive(), len(recorder.made)
        loss.backward()
        if checkpointing == "selective":
            # Each projection of the blocks is made once more, not once a tensor that wants it.
            outside = alive["selective"]  # the templates' stack is not watched
            assert made < len(recorder.made) <= 2 * made - outside
        del loss
        assert recorder.alive() == 0
    assert alive["selective"] < alive["none"] / 2


@pytest.mark.parametrize("checkpointing", ["full", "offload"])
def test_blocks_below_the_first_that_is_trained_are_left_out(
    micro: Config, checkpointing: ActivationCheckpointing
) -> None:
    found = []
    for mode in ("none", checkpointing):
        model = model_of(deep(micro), mode, TORCH)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(("evoformer.blocks.2", "evoformer.blocks.3")))
        loss_of(model, deep(micro)).backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    plain, recomputed = found
    assert plain.keys() == recomputed.keys()
    assert all(torch.equal(recomputed[name], gradient) for name, gradient in plain.items())


class InputWatch:
    """Counts the inputs of blocks that are alive, before each block."""

    def __init__(self) -> None:
        self._inputs: list[weakref.ref[Any]] = []
        self.alive: list[int] = []

    def __call__(self, _: Any, arguments: tuple[Any, ...]) -> None:
        self._inputs += [weakref.ref(tensor.untyped_storage()) for tensor in arguments[:2]]
        self.alive.append(sum(memory() is not None for memory in self._inputs))


def test_offloaded_inputs_leave_one_block_later(micro: Config) -> None:
    """While a block runs, its inputs and those before it are there, and what the callers hold."""
    alive: dict[str, list[int]] = {}
    modes: tuple[ActivationCheckpointing, ...] = ("full", "offload")
    for checkpointing in modes:
        watch, model = InputWatch(), model_of(deep(micro), checkpointing, TORCH)
        for block in model.evoformer.blocks:
            block.register_forward_pre_hook(watch)
        loss = loss_of(model, deep(micro))
        watch(None, ())
        loss.backward()
        alive[checkpointing] = watch.alive
    assert alive["full"] == [2, 4, 6, 8, 10, 10]
    assert alive["offload"] == [2, 4, 6, 6, 6, 2]


@pytest.mark.parametrize("checkpointing", ["selective", "offload"])
def test_a_second_backward_finds_the_same(
    micro: Config, checkpointing: ActivationCheckpointing
) -> None:
    model = model_of(micro.model, checkpointing, OTHERS)
    loss, parameters = loss_of(model, micro.model), list(model.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    second = torch.autograd.grad(loss, parameters, allow_unused=True)
    for one, other in zip(first, second, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def test_passes_without_gradient_are_left_alone(micro: Config) -> None:
    model, plain = (model_of(micro.model, mode, TORCH) for mode in ("selective", "none"))
    features, like = example_features(SIZES), next(model.parameters())
    before = Previous.zeros(1, SIZES["N"], micro.model, like)
    with torch.no_grad():
        ours, reference = (
            m.recycle(features, before, m.embed_templates(features)) for m in (model, plain)
        )
    assert all(torch.equal(a, b) for a, b in zip(ours, reference, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("graphs", [False, True])
def test_state_after_steps_on_a_gpu_is_the_same_to_the_bit(
    micro_tree: dict[str, Any], shards: Path, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalefold.optim.on_host._PIECE", 5_000)

    def state(checkpointing: ActivationCheckpointing) -> Tensor:
        settings = {"recomputation": checkpointing, "precision": "bf16", "cuda_graphs": graphs}
        config = make_config(merge(micro_tree, {"training": settings | {"deterministic": True}}))
        parts = assemble(config, torch.device("cuda"))
        with TrainingLoader(ShardReader(shards), config, "cuda") as loader:
            for batch in loader:
                assert bool(parts.step(batch.samples, 1e-3).finite)
        return torch.cat([tensor.flatten().cpu() for _, tensor in parts.state.whole()])

    try:
        plain = state("none")
        assert torch.equal(state("selective"), plain)
        assert torch.equal(state("full"), plain)
        assert torch.equal(state("offload"), plain)
    finally:
        torch.use_deterministic_algorithms(False)
