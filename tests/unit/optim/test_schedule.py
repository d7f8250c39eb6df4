import pytest

from scalefold.config.schema import OptimiserConfig
from scalefold.optim.schedule import learning_rate


def test_alphafold_schedule() -> None:
    config = OptimiserConfig()
    assert learning_rate(1, config) == pytest.approx(1e-6)
    assert learning_rate(500, config) == pytest.approx(5e-4)
    assert learning_rate(1000, config) == learning_rate(50_000, config) == 1e-3
    assert learning_rate(50_001, config) == learning_rate(10**6, config) == pytest.approx(9.5e-4)


def test_warm_up_starts_at_zero_and_is_linear() -> None:
    config = OptimiserConfig(warmup_steps=8, learning_rate=1.0)
    rates = [learning_rate(step, config) for step in range(1, 10)]
    assert rates == [step / 8 for step in range(1, 9)] + [1.0]


def test_without_warm_up_and_decay_the_rate_is_constant() -> None:
    config = OptimiserConfig(warmup_steps=0, decay_after_steps=0, learning_rate=5e-4)
    assert {learning_rate(step, config) for step in (1, 2, 50_001, 10**7)} == {5e-4}


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1, found 0"):
        learning_rate(0, OptimiserConfig())
