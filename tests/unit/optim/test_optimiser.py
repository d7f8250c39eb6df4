"""Adam against torch's."""

import pytest
import torch

from scalefold.config.schema import OptimiserConfig
from scalefold.optim.optimiser import Adam

CONFIG = OptimiserConfig()
YES, NO = torch.tensor(True), torch.tensor(False)


def _rate(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_equals_torchs_adam_in_float64_to_float32_rounding() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(1000, generator=generator)
    reference = torch.nn.Parameter(weights.double())
    theirs = torch.optim.Adam([reference], lr=1.0, betas=(0.9, 0.999), eps=1e-6)
    ours = Adam(weights, CONFIG)
    for step in range(50):
        # Gradients over ten orders of magnitude: eps and the bias corrections matter.
        scale = 10.0 ** torch.randint(-8, 2, (1000,), generator=generator)
        gradient = torch.randn(1000, generator=generator) * scale
        rate = 1e-3 * (step + 1) / 50
        reference.grad = gradient.double()
        theirs.param_groups[0]["lr"] = rate
        theirs.step()
        ours.update(weights, gradient.clone(), _rate(rate), YES)
    # An update is at most a few rates (1e-3); 50 of them, each with a few roundings of 2^-24
    # relative to the weight (below 4) and to the update.
    bound = 50 * (4 * 2**-24 + 1e-2 * 8 * 2**-24)
    assert (weights.double() - reference.detach()).abs().max() < bound
    assert ours.updates == 50


def test_a_skipped_step_changes_nothing_at_all() -> None:
    weights = torch.randn(100)
    adam = Adam(weights, CONFIG)
    adam.update(weights, torch.randn(100), _rate(0.1), YES)
    before = [t.clone() for t in (weights, adam.first_moment, adam.second_moment, adam.updates)]
    for bad in (torch.nan, torch.inf):
        adam.update(weights, torch.full((100,), bad), _rate(0.1), NO)
    after = [weights, adam.first_moment, adam.second_moment, adam.updates]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_skipped_first_step_changes_nothing() -> None:
    weights = torch.randn(100)
    before = weights.clone()
    adam = Adam(weights, CONFIG)
    adam.update(weights, torch.full((100,), torch.nan), _rate(0.1), NO)
    assert torch.equal(weights, before)
    assert not adam.first_moment.any()
    assert not adam.second_moment.any()


def test_gaps_between_parameters_stay_zero() -> None:
    weights = torch.zeros(64)
    adam = Adam(weights, CONFIG)
    for _ in range(3):
        adam.update(weights, torch.zeros(64), _rate(0.1), YES)
    assert not weights.any()


@pytest.mark.parametrize("step", [1, 7])
def test_first_updates_have_the_size_of_the_rate(step: int) -> None:
    # With a constant gradient far above eps, every bias-corrected update is rate * sign.
    weights, adam = torch.zeros(4), None
    adam = Adam(weights, CONFIG)
    for _ in range(step):
        adam.update(weights, torch.tensor([1.0, -1.0, 100.0, -0.01]), _rate(0.5), YES)
    expected = 0.5 * step * torch.tensor([-1.0, 1.0, -1.0, 1.0])
    torch.testing.assert_close(weights, expected, rtol=2e-4, atol=0)  # eps / 0.01 = 1e-4
