"""Steps whose loss or gradient is not finite: counted and named. Too many end the run.

Such a step was not applied (see `scalefold.train.step`); nothing is zeroed or clipped away.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalefold.errors import InputError
from scalefold.train.step_numbers import HostNumbers

logger = logging.getLogger(__name__)


class DivergedError(InputError):
    """Too many steps in a row were not finite."""


@dataclass
class SkippedSteps:
    """Counts skipped steps.

    Attributes
    ----------
    max_in_a_row : int
        The run stops when more than this many steps in a row are skipped.
    skipped, in_a_row : int
        Skipped so far, and since the last good step.
    """

    max_in_a_row: int
    skipped: int = 0
    in_a_row: int = 0

    def check(self, step: int, numbers: HostNumbers, chain_keys: Sequence[str]) -> None:
        """Take note of a step.

        Raises
        ------
        DivergedError
            Saying which step, which chains, and which terms were not finite.
        """
        if numbers.finite:
            self.in_a_row = 0
            return
        self.skipped += 1
        self.in_a_row += 1
        cause = diagnosis(numbers, chain_keys) or "see the other ranks for the cause"
        logger.warning(
            "step %d skipped, not finite: %s (%d in a row, %d in all)",
            step, cause, self.in_a_row, self.skipped,
        )  # fmt: skip
        if self.in_a_row > self.max_in_a_row:
            raise DivergedError(
                f"training stopped at step {step}: {self.in_a_row} steps in a row were not finite "
                f"(training.max_non_finite_steps is {self.max_in_a_row}). The last one: {cause}. "
                "If it is always the same chain, look at it with `scalefold inspect`; if it is all "
                "of them, the weights have diverged: start from an earlier checkpoint with a lower "
                "optimiser.learning_rate, or with training.precision fp32"
            )


def diagnosis(numbers: HostNumbers, chain_keys: Sequence[str]) -> str:
    """Which chains of this rank, and what of each was not finite; empty if all was well here."""
    causes = []
    for chain_key, sample in zip(chain_keys, numbers.per_sample, strict=True):
        terms = [name for name, value in sample.items() if not math.isfinite(value)]
        # Every bad term spoils the loss, and a bad loss the gradient: name the first cause only.
        by_term = [name.removeprefix("loss/") for name in terms if name.startswith("loss/")]
        if by_term:
            causes.append(f"chain {chain_key}: loss terms {', '.join(by_term)}")
        elif "loss" in terms:
            causes.append(f"chain {chain_key}: weighted loss, though each term is finite")
        elif "grad_norm" in terms:
            causes.append(f"chain {chain_key}: gradient, though the loss is finite")
    return "; ".join(causes)
