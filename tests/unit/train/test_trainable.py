"""Training a part of the model leaves the rest as it is, to the last bit."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.train.quietly import train_quietly
from tests.unit.train.trajectory import assert_identical, records

from scalefold.checkpoint.read import checkpoint_path, load_training, load_weights
from scalefold.config import Config, make_config
from scalefold.config.load import merge
from scalefold.errors import InputError
from scalefold.optim.parameters import FlatParameters
from scalefold.optim.trainable import freeze_others, trained_names
from scalefold.train.metrics import MetricsLog

TRAINED = ["structure_module", "evoformer.linear"]


@pytest.fixture(params=["none", "selective", "full"])
def config(request: pytest.FixtureRequest, micro_tree: dict[str, Any]) -> Config:
    training = {"trainable": TRAINED, "recomputation": request.param}
    return make_config(merge(micro_tree, {"training": training}))


def _is_trained(name: str) -> bool:
    return name.startswith(tuple(f"{prefix}." for prefix in TRAINED))


def test_only_the_named_modules_and_their_averages_change(
    config: Config, shards: Path, tmp_path: Path
) -> None:
    train_quietly(config, shards, tmp_path)
    for which in ("weights", "averaged"):
        before, after = (
            load_weights(checkpoint_path(tmp_path, s), which) for s in (0, config.training.steps)
        )
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed
        assert all(map(_is_trained, changed))
        assert len(changed) > 0.5 * sum(map(_is_trained, before))


def test_it_resumes_exactly(
    micro_tree: dict[str, Any], shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(merge(micro_tree, {"training": {"trainable": TRAINED}}))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_quietly(config, shards, whole)
    stop = threading.Event()
    write = MetricsLog.write

    def stopping(self: MetricsLog, record: dict[str, Any]) -> None:
        write(self, record)
        stop.set()

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "write", stopping)
        assert not train_quietly(config, shards, parts, stop=stop).completed
    train_quietly(config, shards, parts, resume=True)
    assert records(parts) == records(whole)
    ours, theirs = (checkpoint_path(out, config.training.steps) for out in (parts, whole))
    for which in ("weights", "averaged"):
        assert_identical(load_weights(ours, which), load_weights(theirs, which))
    assert_identical(load_training(ours), load_training(theirs))


@pytest.mark.parametrize("way", ["backward_with_hooks", "backward"])
def test_gradients_of_what_is_trained_are_those_of_the_whole_model(way: str) -> None:
    def model() -> torch.nn.Sequential:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))

    plain, partly = model(), model()
    freeze_others(partly, ["2"])
    flat = FlatParameters(partly, lambda name: name.startswith("0."), torch.float32)
    x = torch.randn(4, 7)
    plain(x).square().sum().backward()
    getattr(flat, way)(partly(x).square().sum())
    flat.collect_gradient()
    for name, view in flat.by_name(flat.gradient).items():
        expected = plain.get_parameter(name).grad
        assert torch.equal(view, expected if name.startswith("2.") else torch.zeros_like(view))
    assert (flat.num_parameters, flat.num_trained) == (58, 18)


def test_prefixes_end_where_a_module_ends() -> None:
    names = ["a.blocks.1.w", "a.blocks.11.w", "ab.w"]
    assert trained_names(names, ["a.blocks.1"]) == {"a.blocks.1.w"}
    assert trained_names(names, ["a", "ab.w"]) == set(names)
    assert trained_names(names, None) == set(names)


def test_a_module_that_the_model_lacks_is_named(
    micro_tree: dict[str, Any], shards: Path, tmp_path: Path
) -> None:
    config = make_config(merge(micro_tree, {"training": {"trainable": ["structure"]}}))
    with pytest.raises(InputError, match=r"training\.trainable: .*'structure'.*structure_module"):
        train_quietly(config, shards, tmp_path / "out")


def test_modules_that_the_loss_does_not_depend_on_are_named(
    micro_tree: dict[str, Any], shards: Path, tmp_path: Path
) -> None:
    heads = ["aux_heads.masked_msa", "aux_heads.distogram"]
    settings = {"training": {"trainable": heads}, "loss": {"masked_msa": 0.0, "distogram": 0.0}}
    config = make_config(merge(micro_tree, settings))
    with pytest.raises(InputError, match=rf"training\.trainable: .*{', '.join(heads)}") as found:
        train_quietly(config, shards, tmp_path / "out")
    assert "\n" not in str(found.value)
