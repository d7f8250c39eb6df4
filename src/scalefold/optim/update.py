"""From the sum of a step's gradients to new weights: clipping, Adam, averaging, working copy."""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold.optim.averaging import WeightAverage
from scalefold.optim.clipping import ClippedMean
from scalefold.optim.optimiser import Adam
from scalefold.optim.parameters import FlatParameters


class Update:
    """Ends a step.

    Parameters
    ----------
    parameters, adam, average
        Whose buffers and counters are updated.
    """

    def __init__(self, parameters: FlatParameters, adam: Adam, average: WeightAverage) -> None:
        self._parameters, self._adam, self._average = parameters, adam, average

    @torch.no_grad()
    def __call__(
        self, mean: ClippedMean, num_samples: int, mean_norm: Tensor, sound: Tensor, rate: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Update weights, their average and the working copy, where all is finite.

        Parameters
        ----------
        mean : ClippedMean
            Holds the gradients of this step.
        num_samples : int
            Of all ranks.
        mean_norm : Tensor, scalar, float32
            Mean of all samples' norms.
        sound : Tensor, scalar, bool
            Whether all losses and norms of samples were finite.
        rate : Tensor, scalar, float64
            Learning rate.

        Returns
        -------
        norm : Tensor, scalar, float32
            See `ClippedMean.finish`.
        applied : Tensor, scalar, bool
        """
        gradient, norm = mean.finish(num_samples, mean_norm)
        finite = sound & norm.isfinite()
        self._adam.update(self._parameters.master, gradient, rate, finite)
        self._average.update(self._parameters.master, finite)
        self._parameters.publish()
        return norm, finite
