"""Learning rate by step: a pure function, so that resuming has nothing to restore."""

from __future__ import annotations

from scalefold.config.schema import OptimiserConfig


def learning_rate(step: int, config: OptimiserConfig) -> float:
    """Learning rate of one step (Jumper et al. 2021, Suppl. sec. 1.11.3).

    Linear warm-up from 0, reaching the full rate at step ``warmup_steps``; one decrease by
    ``decay_factor`` after ``decay_after_steps``.

    Parameters
    ----------
    step : int
        1 for the first update of the weights.
    """
    if step < 1:
        raise ValueError(f"steps count from 1, found {step}")
    rate = config.learning_rate
    if step < config.warmup_steps:
        rate *= step / config.warmup_steps
    if config.decay_after_steps and step > config.decay_after_steps:
        rate *= config.decay_factor
    return rate
