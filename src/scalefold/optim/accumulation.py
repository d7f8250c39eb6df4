"""Sum of a step's gradients over the samples of a rank, each clipped first if it is to be.

Sums are in float32, over the samples in their order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold.optim.parameters import flat_norm

_EPS = 1e-6
"""Added to the norm, as ``torch.nn.utils.clip_grad_norm_`` does."""


def clip_scale(norm: Tensor, clip_norm: float) -> Tensor:
    """The factor that clips a gradient of this norm."""
    return (clip_norm / (norm + _EPS)).clamp(max=1.0)


def add_sample(gradient: Tensor, total: Tensor, clip_norm: float | None, *, first: bool) -> Tensor:
    """Add a sample's gradient to a sum.

    Parameters
    ----------
    gradient : Tensor, shape (P,), float32
    total : Tensor, shape (P,), float32
        The sum. The ``first`` sample overwrites it.
    clip_norm : float or None
        Norm to which the sample's gradient is clipped.
    first : bool

    Returns
    -------
    Tensor, scalar, float32
        Norm of the sample's gradient, before clipping.
    """
    norm = flat_norm(gradient)
    scale = norm.new_ones(()) if clip_norm is None else clip_scale(norm, clip_norm)
    if first:
        torch.mul(gradient, scale, out=total)
    else:
        total.addcmul_(gradient, scale)
    return norm
