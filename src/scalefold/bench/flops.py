"""Floating-point operations of a step, and the most that a GPU makes.

Counted from the model itself: its matrix products in plain torch, two operations a multiply-add, as
``torch.utils.flop_counter`` counts them; backward has twice those of forward, as usual. Elementwise
work, normalisation and softmax are not counted, nor is what recomputation does twice, so that
faster code cannot raise the count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from scalefold.config.schema import Config
from scalefold.engine.pass_memory import empty_features, for_counting
from scalefold.model.alphafold import AlphaFold
from scalefold.model.contract import Previous

PEAK_FLOPS_PER_SECOND: Final = {
    "H200": 989.4e12,
    "H100 PCIe": 756.0e12,
    "H100 NVL": 835.0e12,
    "H100": 989.4e12,
    "A100": 311.9e12,
    "L40S": 362.1e12,
}
"""Dense bfloat16 products by data sheet, under a part of the device's name; the first that fits."""


@dataclass(frozen=True)
class StepFlops:
    """Floating-point operations for one sample.

    Attributes
    ----------
    recycling_pass : int
        Forward, without heads and without the templates' stack, which all passes share.
    training_pass : int
        Forward and backward, the templates' stack included.
    """

    recycling_pass: int
    training_pass: int

    def of_step(self, recycling: int, samples: int = 1) -> int:
        """Operations of a whole step."""
        return samples * (recycling * self.recycling_pass + self.training_pass)


def peak_flops_per_second(device: torch.device) -> float | None:
    """The data sheet's peak of the device in bfloat16, None where it is not known here."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_FLOPS_PER_SECOND.items() if part in name), None)


def count_flops(config: Config) -> StepFlops:
    """Count a configuration's operations, without memory and without computing anything.

    Every block of the Evoformer costs the same, so one and two are counted and the rest follows.
    """
    one, two = (_count(for_counting(config, blocks)) for blocks in (1, 2))
    more = config.model.evoformer.num_blocks - 1
    return StepFlops(
        one.recycling_pass + more * (two.recycling_pass - one.recycling_pass),
        one.training_pass + more * (two.training_pass - one.training_pass),
    )


def _count(config: Config) -> StepFlops:
    with FakeTensorMode(), torch.random.fork_rng(devices=[]), torch.no_grad():
        model = AlphaFold(config.model)
        features = empty_features(config)
        like = next(model.parameters())
        previous = Previous.zeros(1, config.features.crop_size, config.model, like)
        templates = model.embed_templates(features)
        with FlopCounterMode(display=False) as recycling:
            model.recycle(features, previous, templates)
        with FlopCounterMode(display=False) as forward:
            model(features, previous, model.embed_templates(features))
    return StepFlops(recycling.get_total_flops(), 3 * forward.get_total_flops())
