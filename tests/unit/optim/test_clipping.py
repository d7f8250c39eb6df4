import pytest
import torch
from torch import nn

from scalefold.config.schema import OptimiserConfig
from scalefold.optim.clipping import ClippedMean
from scalefold.optim.parameters import FlatParameters
from scalefold.parallel import SINGLE

SIZE = 4096 * 3


def _gradients() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    # Norms of about 1.1e2, 1.1e-1 and 1.1e-4 around a limit of 0.1.
    return [torch.randn(SIZE, generator=generator) * 10.0**-k for k in (0, 3, 6)]


def _reference_clip(gradient: torch.Tensor, limit: float) -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.zeros(SIZE))
    parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([parameter], limit)
    return parameter.grad


def _run(scope: str, gradients: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(SIZE))})
    config = OptimiserConfig(clip_norm=0.1, clip_scope=scope)
    flat = FlatParameters(model)
    mean = ClippedMean(flat, config, SINGLE)
    for _ in range(2):  # twice: a step must not see the one before
        mean.start()
        norms = []
        for number, gradient in enumerate(gradients, 1):
            last = number == len(gradients)
            flat.zero_gradient()
            with mean.overlapped(last=last):
                (model["w"] * gradient).sum().backward()
            norms.append(mean.add(last=last))
        result, norm = mean.finish(len(gradients), torch.stack(norms).mean())
    return result, norm


def test_each_sample_is_clipped_before_the_mean() -> None:
    gradients = _gradients()
    result, norm = _run("sample", gradients)
    expected = torch.stack([_reference_clip(g, 0.1) for g in gradients]).mean(0)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-9)
    assert norm == pytest.approx(sum(float(g.norm()) for g in gradients) / 3, rel=1e-5)
    # The first sample alone would be a thousand times the second: clipped, they are alike.
    assert float(result.norm()) < 0.1


def test_the_mean_is_clipped_globally() -> None:
    gradients = _gradients()
    result, norm = _run("global", gradients)
    mean = torch.stack(gradients).mean(0)
    torch.testing.assert_close(result, _reference_clip(mean, 0.1), rtol=1e-5, atol=1e-9)
    assert norm == pytest.approx(float(mean.norm()), rel=1e-5)
    assert float(result.norm()) == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("scope", ["sample", "global"])
def test_small_gradients_are_left_alone(scope: str) -> None:
    small = _gradients()[2]
    result, _ = _run(scope, [small])
    assert torch.equal(result, small)


@pytest.mark.parametrize("scope", ["sample", "global"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_sample_shows_in_the_norm(scope: str, bad: float) -> None:
    gradients = _gradients()
    gradients[1][17] = bad
    _, norm = _run(scope, gradients)
    assert not norm.isfinite()
