"""Gradient clipping, over the samples of a step: each sample's gradient, or their mean's.

AlphaFold2 clips each sample's gradient by its global norm before averaging (Suppl. sec. 1.11.3), so
that one bad sample cannot rule a batch; MLPerf clips the mean.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from scalefold.train.parameters import flat_norm

_EPS = 1e-6
"""Added to the norm, as ``torch.nn.utils.clip_grad_norm_`` does."""


class ClippedMean:
    """Mean over samples of gradients, clipped by norm.

    Parameters
    ----------
    like : Tensor, shape (P,), float32
    clip_norm : float
    scope : ``"sample"`` or ``"global"``
    """

    def __init__(self, like: Tensor, clip_norm: float, scope: Literal["sample", "global"]) -> None:
        self._clip_norm, self._scope = clip_norm, scope
        self._sum = torch.zeros_like(like)
        self._norms: list[Tensor] = []

    def start(self) -> None:
        """Begin a step."""
        self._sum.zero_()
        self._norms = []

    def add(self, gradient: Tensor) -> Tensor:
        """Take in one sample's gradient; returns its norm, a scalar on the device."""
        norm = flat_norm(gradient)
        self._norms.append(norm)
        if self._scope == "sample":
            self._sum.addcmul_(gradient, _scale(norm, self._clip_norm))
        else:
            self._sum.add_(gradient)
        return norm

    def finish(self) -> tuple[Tensor, Tensor]:
        """End a step.

        Returns
        -------
        gradient : Tensor, shape (P,), float32
            This object's buffer: valid, and free to be overwritten, until the next `start`.
        norm : Tensor, scalar, float32
            Before clipping: the mean of the samples' norms, or the norm of the mean. Not finite
            where any sample's gradient is not.
        """
        mean = self._sum.div_(len(self._norms))
        if self._scope == "sample":
            return mean, torch.stack(self._norms).mean()
        norm = flat_norm(mean)
        return mean.mul_(_scale(norm, self._clip_norm)), norm


def _scale(norm: Tensor, clip_norm: float) -> Tensor:
    return (clip_norm / (norm + _EPS)).clamp(max=1.0)
