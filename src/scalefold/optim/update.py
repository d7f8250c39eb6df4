"""From the sum of a step's gradients to new weights: clipping, Adam, averaging, working copy.

Adam and averaging work element by element. So ranks that have the same gradient may each do a part
of the weights, hold moments and averages of that part alone, and pass on the new weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold.optim.averaging import WeightAverage
from scalefold.optim.clipping import ClippedMean
from scalefold.optim.optimiser import Adam
from scalefold.optim.parameters import FlatParameters
from scalefold.parallel import ALONE, Ranks


class WeightUpdate:
    """Ends a step.

    Parameters
    ----------
    parameters, adam, average
        Whose buffers and counters are updated.
    owners : Ranks
        Those that each do a part of the weights.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        adam: Adam,
        average: WeightAverage,
        owners: Ranks = ALONE,
    ) -> None:
        self._parameters, self._adam, self._average = parameters, adam, average
        self._owners = owners

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
        weights = self._owners.part(self._parameters.master)
        self._adam.update(weights, self._owners.part(gradient), rate, finite)
        self._average.update(weights, finite)
        self._owners.all_gather_parts(self._parameters.master)
        self._parameters.update_working_copy()
        return norm, finite
