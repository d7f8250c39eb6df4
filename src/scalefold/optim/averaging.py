"""Averages of the weights over training; evaluation uses these.

Both are ``a <- d a + (1 - d) w`` after each update. They differ at the start: AlphaFold2's
exponential moving average (Suppl. sec. 1.11.7) begins with the initial weights, what MLPerf calls
stochastic weight averaging with the weights after the first update.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold.config.schema import OptimiserConfig
from scalefold.optim.on_host import on_device


class WeightAverage:
    """A running average of flat weights.

    Attributes
    ----------
    average : Tensor, shape (P,), float32
        Before the first update, the initial weights.
    updates : Tensor, scalar, float64
        Updates averaged so far.
    share, first_share : float
        Weight of new weights in their average; of the first ones.
    """

    def __init__(self, weights: Tensor, config: OptimiserConfig) -> None:
        self.share = 1.0 - config.averaging_decay
        self.first_share = 1.0 if config.averaging == "swa" else self.share
        self.average = weights.clone()
        self.updates = torch.zeros((), dtype=torch.float64, device=weights.device)

    @torch.no_grad()
    def update(self, weights: Tensor, finite: Tensor) -> None:
        """Take in the weights after an update.

        Parameters
        ----------
        weights : Tensor, shape (P,), float32
        finite : Tensor, scalar, bool
            Where false (the step was skipped) the average stays exactly as it is.
        """
        share = torch.where(self.updates > 0, self.share, self.first_share)
        active = finite.to(torch.float64)
        for part, (average,) in on_device([self.average], weights.device):
            average.lerp_(weights[part], (share * active).float())
        self.updates += active
