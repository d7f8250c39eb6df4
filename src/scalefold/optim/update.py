"""From the sum of a step's gradients to new weights: clipping, Adam, averaging, working copy.

In plain torch each is an operation over the flat buffers; the kernels make two launches of all.
"""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from scalefold.config.schema import OptimiserConfig
from scalefold.optim.averaging import WeightAverage
from scalefold.optim.clipping import ClippedMean
from scalefold.optim.optimiser import Adam
from scalefold.optim.parameters import FlatParameters


class Update(Protocol):
    """Ends a step."""

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


class TorchUpdate:
    """One torch operation after the other."""

    def __init__(self, parameters: FlatParameters, adam: Adam, average: WeightAverage) -> None:
        self._parameters, self._adam, self._average = parameters, adam, average

    def __call__(
        self, mean: ClippedMean, num_samples: int, mean_norm: Tensor, sound: Tensor, rate: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Update`."""
        gradient, norm = mean.finish(num_samples, mean_norm)
        finite = sound & norm.isfinite()
        self._adam.update(self._parameters.master, gradient, rate, finite)
        self._average.update(self._parameters.master, finite)
        self._parameters.publish()
        return norm, finite


class FusedUpdate:
    """The same in two launches; equal to rounding, not to the bit.

    Parameters
    ----------
    kernels : module
        `scalefold_kernels.optimiser`, as `scalefold.ops.triton` returns it.
    parameters, adam, average
        Whose buffers and counters are used.
    config : OptimiserConfig
    """

    def __init__(
        self,
        kernels: ModuleType,
        parameters: FlatParameters,
        adam: Adam,
        average: WeightAverage,
        config: OptimiserConfig,
    ) -> None:
        self._kernels, self._parameters = kernels, parameters
        self._adam, self._average = adam, average
        self._clip_norm, self._per_sample = config.clip_norm, config.clip_scope == "sample"
        self._constants = kernels.AdamConstants(
            config.beta1, config.beta2, config.eps, average.share, average.first_share
        )

    @torch.no_grad()
    def __call__(
        self, mean: ClippedMean, num_samples: int, mean_norm: Tensor, sound: Tensor, rate: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Update`."""
        if mean.lone:
            narrow, wide = self._parameters.working_gradient, self._parameters.gradient
        else:
            narrow, wide = None, mean.collect()
        counters = self._adam.updates, self._average.updates
        if self._per_sample and not mean.lone:
            # The samples were clipped, only the mean of norms is wanted.
            clip_norm, sums = None, (mean_norm * num_samples).reshape(1)
            counts = torch.stack(counters)
        else:
            clip_norm = self._clip_norm
            sums, counts = self._kernels.gradient_square_sums(narrow, wide, *counters)
        norm, applied = self._kernels.apply_update(
            self._parameters.master,
            self._adam.first_moment,
            self._adam.second_moment,
            self._average.average,
            self._parameters.working,
            *counters,
            narrow,
            wide,
            sums,
            counts,
            rate,
            sound,
            num_samples,
            clip_norm,
            self._constants,
        )
        return norm, applied
