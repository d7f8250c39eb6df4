"""Operations are counted from the model, whatever its depth, and without making it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from scalefold.bench import flops as module
from scalefold.bench.flops import StepFlops, count_flops, empty_features, peak_flops_per_second
from scalefold.bench.variation import varied
from scalefold.config import Config
from scalefold.loss.total import total_loss
from scalefold.model import AlphaFold, Previous


def test_every_block_is_counted(config: Config) -> None:
    deep = varied(config, {"model.evoformer.num_blocks": 3})
    assert count_flops(deep) == module._count(deep)


def test_backward_is_twice_forward(config: Config) -> None:
    """Real tensors, forward with loss and backward: within what the loss and first layers add."""
    model, features = AlphaFold(config.model), empty_features(config)
    features = {name: torch.zeros_like(value) for name, value in features.items()}
    previous = Previous.zeros(1, 16, config.model, next(model.parameters()))
    with FlopCounterMode(display=False) as counter:
        outputs, _ = model(features, previous, model.embed_templates(features))
        total_loss(outputs, features, config.loss)[0].backward()
    assert count_flops(config).training_pass == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_a_step_has_its_passes_and_samples() -> None:
    flops = StepFlops(recycling_pass=10, training_pass=31)
    assert [flops.of_step(n) for n in (0, 1, 3)] == [31, 41, 61]
    assert flops.of_step(1, samples=2) == 82


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-40GB", 311.9),
        ("Some other GPU", None),
    ],
)
def test_peaks_by_name(name: str, tera: float | None, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    peak = peak_flops_per_second(torch.device("cuda"))
    assert peak == (None if tera is None else pytest.approx(tera * 1e12))
    assert peak_flops_per_second(torch.device("cpu")) is None
