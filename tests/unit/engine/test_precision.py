"""`BF16_POLICY` against the types that a real step has: nothing else, and nothing less."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from scalefold.config import make_config
from scalefold.config.load import merge
from scalefold.engine.precision import BF16_POLICY
from scalefold.features.pipeline import training_features
from scalefold.loss.total import total_loss
from scalefold.model.contract import Previous
from scalefold.ops import TORCH
from scalefold.shards.reader import ShardReader
from scalefold.train import assemble as assembly
from scalefold.train.assemble import TrainingParts

CPU = torch.device("cpu")
MOVES = {
    *("view", "_unsafe_view", "as_strided", "expand", "permute", "t", "transpose", "unsqueeze"),
    *("squeeze", "select", "slice", "split", "split_with_sizes", "unbind", "alias", "detach"),
    *("clone", "_to_copy"),
}


def floating(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from floating(part)


def rules(kind: str) -> dict[str, torch.dtype]:
    return {rule.where: rule.dtype for rule in BF16_POLICY if rule.kind == kind}


def module_type(name: str) -> torch.dtype:
    return next(dtype for where, dtype in rules("modules").items() if name.startswith(where))


class Computed(TorchDispatchMode):
    """Types of computed numbers, by the module's name and the places that were at work."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work: list[tuple[str, str]] = []
        self.seen: set[tuple[str, str, torch.dtype]] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if self.at_work and function.overloadpacket.__name__ not in MOVES:
            name, place = self.at_work[-1]
            self.seen |= {(name, place, tensor.dtype) for tensor in floating(result)}
        return result

    def watch_module(self, name: str, module: nn.Module) -> None:
        place = type(module).__name__
        module.register_forward_pre_hook(lambda *_: self.at_work.append((name, place)))
        module.register_forward_hook(lambda *_: (self.at_work.pop(), None)[1])

    def watched(self, operation: Callable[..., Any], place: str) -> Callable[..., Any]:
        @functools.wraps(operation)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.at_work:  # backward, which is no module's
                return operation(*args, **kwargs)
            self.at_work.append((self.at_work[-1][0], place))
            try:
                return operation(*args, **kwargs)
            finally:
                self.at_work.pop()

        return call


@pytest.fixture
def computed() -> Computed:
    return Computed()


@pytest.fixture
def parts(
    micro_tree: dict[str, Any], computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> TrainingParts:
    operations = {
        field.name: computed.watched(getattr(TORCH, field.name), field.name)
        for field in dataclasses.fields(TORCH)
    }
    ops = dataclasses.replace(TORCH, **operations)
    monkeypatch.setattr(assembly, "select_ops", lambda *_: ops)
    tree = merge(micro_tree, {"training": {"precision": "bf16"}})
    parts = assembly.assemble(make_config(tree), CPU)
    for name, module in parts.model.named_modules():
        if name:
            computed.watch_module(f"{name}.", module)
    return parts


@pytest.fixture
def passes(micro_tree: dict[str, Any], shards: Path) -> list[Any]:
    sample = ShardReader(shards).sample("5pti_A")
    return training_features(sample, make_config(micro_tree).features, 0, 0, range(2))


def test_the_model_computes_in_the_types_of_the_policy(
    parts: TrainingParts, computed: Computed, passes: list[Any], micro_tree: dict[str, Any]
) -> None:
    like = parts.model.input_embedder.linear_msa_m.weight
    previous = Previous.zeros(1, 16, make_config(micro_tree).model, like)
    with computed:
        templates = parts.model.embed_templates(passes[0])
        parts.model(passes[0], previous, templates)
    islands = rules("island")
    wider = {entry for entry in computed.seen if entry[2] != module_type(entry[0])}
    assert {(place, dtype) for _, place, dtype in wider} == set(islands.items())
    # and where a type is expected, there is something of it
    assert {dtype for _, _, dtype in computed.seen - wider} == set(rules("modules").values())


def test_modules_return_the_type_of_the_policy(parts: TrainingParts, passes: list[Any]) -> None:
    returned: set[tuple[str, torch.dtype]] = set()
    for name, module in parts.model.named_modules():
        if name and not name.endswith("template_embedder"):
            module.register_forward_hook(
                lambda _, __, result, name=name: returned.update(
                    (f"{name}.", tensor.dtype) for tensor in floating(result)
                )
            )
    parts.step([passes[:1]], 1e-3)
    assert {dtype for _, dtype in returned} == {torch.float32, torch.bfloat16}
    assert [entry for entry in returned if entry[1] != module_type(entry[0])] == []


def test_state_is_in_the_types_of_the_policy(
    parts: TrainingParts, passes: list[Any], micro_tree: dict[str, Any]
) -> None:
    config = make_config(micro_tree)
    model, flat = parts.model, parts.parameters
    like = model.input_embedder.linear_msa_m.weight
    zeros, templates = Previous.zeros(1, 16, config.model, like), model.embed_templates(passes[0])
    outputs, previous = model(passes[0], zeros, templates)
    loss, terms = total_loss(outputs, passes[0], config.loss)
    gradients = {name: p.grad.dtype for name, p in model.named_parameters() if p.grad is not None}
    types = {
        "recycled positions": [previous.positions],
        "recycled representations": [previous.msa_first_row, previous.pair],
        "losses": [loss, *terms.values()],
        "sum over samples and ranks": [flat.gradient],
        "master weights": [flat.master],
        "Adam's moments": [parts.state.optimiser.first_moment, parts.state.optimiser.second_moment],
        "averaged weights": [parts.state.average.average],
        "counters and learning rate": [parts.state.optimiser.updates, parts.state.average.updates],
    }
    found = {where: {tensor.dtype for tensor in tensors} for where, tensors in types.items()}
    narrow = {name for name in gradients if module_type(name) == torch.bfloat16}
    found["gradient of a sample, trunk"] = {gradients[name] for name in narrow}
    found["gradient of a sample, rest"] = {gradients[name] for name in gradients.keys() - narrow}
    assert found == {where: {dtype} for where, dtype in rules("state").items()}
