"""Sum of a step's gradients over the samples of a rank, each clipped first if it is to be.

Sums are in float32, over the samples in their order.
"""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from scalefold.optim.parameters import FlatParameters, flat_norm

_EPS = 1e-6
"""Added to the norm, as ``torch.nn.utils.clip_grad_norm_`` does."""


def clip_scale(norm: Tensor, clip_norm: float) -> Tensor:
    """What a gradient of this norm is multiplied by."""
    return (clip_norm / (norm + _EPS)).clamp(max=1.0)


class Accumulation(Protocol):
    """Adds what a sample's backward pass left in the gradient buffers to a sum."""

    def __call__(self, total: Tensor, *, first: bool) -> Tensor:
        """Add to ``total`` (P,), float32, or overwrite it with the ``first`` sample's.

        Returns
        -------
        Tensor, scalar, float32
            Norm of the sample's gradient, before clipping.
        """


class TorchAccumulation:
    """One torch operation after the other.

    Parameters
    ----------
    parameters : FlatParameters
    clip_norm : float or None
        Norm to which each sample's gradient is clipped.
    """

    def __init__(self, parameters: FlatParameters, clip_norm: float | None) -> None:
        self._parameters, self._clip_norm = parameters, clip_norm

    def __call__(self, total: Tensor, *, first: bool) -> Tensor:
        """See `Accumulation`."""
        self._parameters.collect_gradient()
        gradient = self._parameters.gradient
        norm = flat_norm(gradient)
        scale = norm.new_ones(())
        if self._clip_norm is not None:
            scale = clip_scale(norm, self._clip_norm)
        if first:
            torch.mul(gradient, scale, out=total)
        else:
            total.addcmul_(gradient, scale)
        return norm


class FusedAccumulation:
    """The same in two launches, which read the narrow gradients where they are.

    Parameters
    ----------
    kernels : module
        `scalefold_kernels.optimiser`, as `scalefold.ops.triton` returns it.
    parameters, clip_norm
        See `TorchAccumulation`.
    """

    def __init__(
        self, kernels: ModuleType, parameters: FlatParameters, clip_norm: float | None
    ) -> None:
        self._kernels, self._parameters, self._clip_norm = kernels, parameters, clip_norm

    def __call__(self, total: Tensor, *, first: bool) -> Tensor:
        """See `Accumulation`."""
        gradient = self._parameters.working_gradient, self._parameters.gradient
        norm = total.new_empty(())
        sums, _ = self._kernels.gradient_square_sums(*gradient)
        self._kernels.accumulate_gradient(total, norm, *gradient, sums, self._clip_norm, first)
        return norm
