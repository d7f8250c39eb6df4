import torch

from scalefold.config.schema import OptimiserConfig
from scalefold.optim.averaging import WeightAverage

YES, NO = torch.tensor(True), torch.tensor(False)


def _history() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(200, generator=generator) for _ in range(6)]


def test_ema_starts_from_the_initial_weights() -> None:
    initial, *rest = _history()
    average = WeightAverage(initial, OptimiserConfig(averaging="ema", averaging_decay=0.9))
    expected = initial.double()
    for weights in rest:
        average.update(weights, YES)
        expected = 0.9 * expected + 0.1 * weights.double()
    # float32: five lerps of values below 8, the decay rounded to 2^-24
    torch.testing.assert_close(average.average.double(), expected, rtol=0, atol=5 * 8 * 2**-23)


def test_swa_equals_torchs_averaged_model() -> None:
    """MLPerf's averaging is torch's `AveragedModel` with this averaging function."""
    initial, *rest = _history()
    model = torch.nn.Linear(200, 1, bias=False)
    theirs = torch.optim.swa_utils.AveragedModel(
        model, avg_fn=lambda average, value, count: average + (value - average) * (1.0 - 0.9)
    )
    ours = WeightAverage(initial, OptimiserConfig(averaging="swa", averaging_decay=0.9))
    for number, weights in enumerate(rest):
        model.weight.data.copy_(weights)
        theirs.update_parameters(model)
        ours.update(weights, YES)
        found = theirs.module.weight.data[0]
        if number == 0:
            assert torch.equal(ours.average, weights)
        torch.testing.assert_close(ours.average, found, rtol=0, atol=5 * 8 * 2**-23)


def test_before_the_first_update_both_are_the_initial_weights() -> None:
    initial = torch.randn(10)
    for kind in ("ema", "swa"):
        average = WeightAverage(initial, OptimiserConfig(averaging=kind))
        assert torch.equal(average.average, initial)
        assert average.average.data_ptr() != initial.data_ptr()


def test_a_skipped_step_changes_nothing() -> None:
    initial, one, two, *_ = _history()
    for kind in ("ema", "swa"):
        average = WeightAverage(initial, OptimiserConfig(averaging=kind, averaging_decay=0.9))
        average.update(one, NO)
        assert torch.equal(average.average, initial)
        average.update(one, YES)
        kept = average.average.clone()
        average.update(two, NO)
        assert torch.equal(average.average, kept)
        assert average.updates == 1
