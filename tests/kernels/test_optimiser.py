"""The fused optimiser step equals clipping, Adam and averaging in plain torch, to rounding."""

import pytest
import torch
from torch import Tensor, nn

import scalefold_kernels.optimiser
from scalefold.config.schema import OptimiserConfig
from scalefold.optim.averaging import WeightAverage
from scalefold.optim.clipping import ClippedMean
from scalefold.optim.optimiser import Adam
from scalefold.optim.parameters import FlatParameters, flat_norm
from scalefold.optim.update import FusedUpdate, TorchUpdate
from scalefold.parallel import SINGLE
from scalefold_kernels.optimiser import (
    AdamConstants,
    accumulate_gradient,
    apply_update,
    gradient_square_sums,
)

SIZE, NUM_NARROW = 3 * 4096, 5056
RATE = 1e-3
EPS = torch.finfo(torch.float32).eps


def _constants(config: OptimiserConfig) -> AdamConstants:
    share = 1.0 - config.averaging_decay
    first = 1.0 if config.averaging == "swa" else share
    return AdamConstants(config.beta1, config.beta2, config.eps, share, first)


class _Fused:
    """State of the fused step."""

    def __init__(self, weights: Tensor, config: OptimiserConfig) -> None:
        self.weights, self.average = weights.clone(), weights.clone()
        self.first_moment = torch.zeros_like(weights)
        self.second_moment = torch.zeros_like(weights)
        self.working = weights[:NUM_NARROW].bfloat16()
        self.updates = torch.zeros((), dtype=torch.float64, device=weights.device)
        self.averaged = self.updates.clone()
        self.config = config

    def update(
        self,
        narrow: Tensor | None,
        wide: Tensor,
        num_samples: int = 1,
        norms: Tensor | None = None,
        finite: bool = True,
    ) -> tuple[Tensor, Tensor]:
        sums, counts = gradient_square_sums(narrow, wide, self.updates, self.averaged)
        rate = torch.tensor(RATE, dtype=torch.float64, device=wide.device)
        return apply_update(
            self.weights,
            self.first_moment,
            self.second_moment,
            self.average,
            self.working,
            self.updates,
            self.averaged,
            narrow,
            wide,
            sums if norms is None else norms,
            counts,
            rate,
            torch.tensor(finite, device=wide.device),
            num_samples,
            self.config.clip_norm if norms is None else None,
            _constants(self.config),
        )

    def state(self) -> list[Tensor]:
        return [self.weights, self.first_moment, self.second_moment, self.average, self.working]


class _Plain:
    """The same step of torch operations."""

    def __init__(self, weights: Tensor, config: OptimiserConfig) -> None:
        self.weights, self.config = weights.clone(), config
        self.adam, self.average = Adam(weights, config), WeightAverage(weights, config)

    def update(self, *gradients: Tensor) -> Tensor:
        norms = [flat_norm(gradient) for gradient in gradients]
        if self.config.clip_scope == "sample":
            clipped = [g * self._scale(norm) for g, norm in zip(gradients, norms, strict=True)]
            mean, norm = sum(clipped) / len(gradients), sum(norms) / len(gradients)
        else:
            mean = sum(gradients) / len(gradients)
            norm = flat_norm(mean)
            mean *= self._scale(norm)
        rate = torch.tensor(RATE, dtype=torch.float64, device=norm.device)
        self.adam.update(self.weights, mean, rate, norm.isfinite())
        self.average.update(self.weights, norm.isfinite())
        return norm

    def _scale(self, norm: Tensor) -> Tensor:
        return (self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0)


def _assert_equal(fused: _Fused, plain: _Plain, steps: int) -> None:
    """To rounding, which each step adds to.

    A moment's error is a few units in the last place of the largest gradient that it has seen.
    That gradient is at most sqrt(t) times the root of the corrected second moment, and the first
    correction divides by no less than 0.1: hence 512 units of the learning rate for the weights.
    """
    weights, first, second, average, _ = fused.state()
    scale = plain.weights.abs() * 2 + 512 * RATE
    assert ((weights - plain.weights).abs() <= steps * EPS * scale).all()
    assert ((average - plain.average.average).abs() <= 2 * steps * EPS * scale).all()
    for ours, reference in (
        (first, plain.adam.first_moment),
        (second, plain.adam.second_moment),
    ):
        assert ((ours - reference).abs() <= 8 * steps * EPS * reference.abs().max()).all()
    assert fused.updates == plain.adam.updates
    assert fused.averaged == plain.average.updates


def _weights(device: torch.device) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(SIZE).to(device)


def _gradient(scale: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The whole in float32, and its two parts; what must not be read is NaN."""
    gradient = (torch.randn(SIZE) * scale).to(device)
    narrow = gradient[:NUM_NARROW].bfloat16()
    gradient[:NUM_NARROW] = narrow.float()
    wide = gradient.clone()
    wide[:NUM_NARROW] = torch.nan
    return gradient, narrow, wide


@pytest.mark.parametrize("averaging", ["ema", "swa"])
def test_equals_adam_with_clipping_and_averaging(averaging: str, device: torch.device) -> None:
    config = OptimiserConfig(clip_scope="global", averaging=averaging)
    fused, plain = _Fused(_weights(device), config), _Plain(_weights(device), config)
    # Clipped hard, clipped a little, not clipped.
    scales = [1.0, 1e-3, 1e-5, 1e-2]
    for step, scale in enumerate(scales, start=1):
        gradient, narrow, wide = _gradient(scale, device)
        reference = plain.update(gradient)
        norm, applied = fused.update(narrow, wide)
        assert applied
        torch.testing.assert_close(norm, reference, rtol=8 * EPS, atol=0)
        _assert_equal(fused, plain, step)


def test_gradient_wholly_in_float32(device: torch.device) -> None:
    config = OptimiserConfig(clip_scope="global")
    fused, plain = _Fused(_weights(device), config), _Plain(_weights(device), config)
    gradient, _, _ = _gradient(1.0, device)
    fused.update(None, gradient)
    plain.update(gradient)
    _assert_equal(fused, plain, 1)


@pytest.mark.parametrize("scope", ["sample", "global"])
def test_several_samples(scope: str, device: torch.device) -> None:
    config = OptimiserConfig(clip_scope=scope)
    fused, plain = _Fused(_weights(device), config), _Plain(_weights(device), config)
    total = torch.full((SIZE,), torch.nan, device=device)
    norms = torch.zeros(4, device=device)  # of three samples, up to a power of two
    wholes = []
    for sample, scale in enumerate([1.0, 1e-5, 1e-2]):
        gradient, narrow, wide = _gradient(scale, device)
        sums, _ = gradient_square_sums(narrow, wide, fused.updates, fused.averaged)
        clip = config.clip_norm if scope == "sample" else None
        accumulate_gradient(total, norms[sample], narrow, wide, sums, clip, sample == 0)
        torch.testing.assert_close(norms[sample], gradient.norm(), rtol=1e-5, atol=0)
        wholes.append(gradient)
    reference = plain.update(*wholes)
    norm, _ = fused.update(None, total, 3, norms if scope == "sample" else None)
    torch.testing.assert_close(norm, reference, rtol=8 * EPS, atol=0)
    _assert_equal(fused, plain, 1)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # inf * 0
@pytest.mark.parametrize("broken", ["gradient", "loss", "norm of a sample"])
def test_not_finite_changes_nothing(broken: str, device: torch.device) -> None:
    fused = _Fused(_weights(device), OptimiserConfig())
    _, narrow, wide = _gradient(1.0, device)
    fused.update(narrow, wide)
    before = [t.clone() for t in fused.state()]
    norms = None
    if broken == "gradient":
        narrow[77] = torch.inf
    elif broken == "norm of a sample":
        norms = torch.tensor([1.0, torch.nan], device=device)
    norm, applied = fused.update(narrow, wide, norms=norms, finite=broken != "loss")
    assert not applied
    assert norm.isfinite() == (broken == "loss")
    assert all(torch.equal(a, b) for a, b in zip(fused.state(), before, strict=True))
    assert fused.updates == 1
    assert fused.averaged == 1


@pytest.mark.parametrize("num_samples", [1, 2])
@pytest.mark.parametrize("scope", ["sample", "global"])
def test_a_step_s_end_is_the_same_fused_or_not(
    scope: str, num_samples: int, device: torch.device
) -> None:
    config = OptimiserConfig(clip_scope=scope)
    results = []
    for kernels in (None, scalefold_kernels.optimiser):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 50)).to(device)
        flat = FlatParameters(model, lambda name: name.startswith("0"))
        adam, average = Adam(flat.master, config), WeightAverage(flat.master, config)
        mean = ClippedMean(flat, config, SINGLE.data, kernels=kernels)
        end = TorchUpdate(flat, adam, average)
        if kernels is not None:
            end = FusedUpdate(kernels, flat, adam, average, config)
        for bad in (False, True, False):
            mean.start()
            norms = []
            for sample in range(num_samples):
                for parameter in model.parameters():
                    # Of one sign: where samples cancel, Adam magnifies how norms were rounded.
                    parameter.grad.normal_().abs_()
                norms.append(mean.add(last=sample == num_samples - 1))
            sound = torch.tensor(not bad, device=device)
            rate = torch.tensor(RATE, dtype=torch.float64, device=device)
            norm, applied = end(mean, num_samples, torch.stack(norms).mean(), sound, rate)
            assert applied == (not bad)
        results.append((flat.master, average.average, norm, adam.updates, average.updates))
    for fused, plain in zip(*reversed(results), strict=True):
        torch.testing.assert_close(fused, plain, rtol=8 * EPS, atol=512 * RATE * EPS)


def test_two_runs_give_the_same_bits(device: torch.device) -> None:
    runs = []
    for _ in range(2):
        fused = _Fused(_weights(device), OptimiserConfig())
        for scale in (1.0, 1e-3):
            _, narrow, wide = _gradient(scale, device)
            fused.update(narrow, wide)
        runs.append(fused.state())
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_opcheck(device: torch.device) -> None:
    fused = _Fused(_weights(device), OptimiserConfig())
    _, narrow, wide = _gradient(1.0, device)
    arguments = (narrow, wide, fused.updates, fused.averaged)
    torch.library.opcheck(torch.ops.scalefold.gradient_square_sums, arguments)
    sums, _ = gradient_square_sums(*arguments)
    norm, total = torch.zeros((), device=device), torch.zeros_like(wide)
    torch.library.opcheck(
        torch.ops.scalefold.accumulate_gradient, (total, norm, narrow, wide, sums, 0.1, True)
    )


def test_working_copy_is_rounded_to_nearest(device: torch.device) -> None:
    fused = _Fused(_weights(device), OptimiserConfig())
    _, narrow, wide = _gradient(1.0, device)
    fused.update(narrow, wide)
    assert torch.equal(fused.working, fused.weights[:NUM_NARROW].bfloat16())


@pytest.mark.gpu
def test_replayed_graph_moves_the_counters(device: torch.device) -> None:
    config = OptimiserConfig()
    fused, plain = _Fused(_weights(device), config), _Plain(_weights(device), config)
    gradient, narrow, wide = _gradient(1e-3, device)
    finite = torch.tensor(True, device=device)
    rate = torch.tensor(RATE, dtype=torch.float64, device=device)

    def step() -> None:
        sums, counts = gradient_square_sums(narrow, wide, fused.updates, fused.averaged)
        apply_update(
            *fused.state()[:4],
            fused.working,
            fused.updates,
            fused.averaged,
            narrow,
            wide,
            sums,
            counts,
            rate,
            finite,
            1,
            config.clip_norm,
            _constants(config),
        )

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    for _ in range(4):
        plain.update(gradient)
    _assert_equal(fused, plain, 4)
