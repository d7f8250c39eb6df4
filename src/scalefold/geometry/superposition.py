"""Least-squares superposition of point sets (Kabsch 1976, 1978) and the distance that remains."""

from __future__ import annotations

import torch
from torch import Tensor

from scalefold.errors import InputError
from scalefold.geometry.rigid import Rigid


def _check(mobile: Tensor, target: Tensor, mask: Tensor) -> None:
    if mobile.shape != target.shape or mobile.shape[-1:] != (3,) or mobile.ndim < 2:
        raise InputError(
            f"superposition: mobile is {tuple(mobile.shape)}, target is {tuple(target.shape)}: "
            "both must have the same shape (..., N, 3)"
        )
    if mask.shape != mobile.shape[:-1]:
        raise InputError(
            f"superposition: mask is {tuple(mask.shape)}, must be {tuple(mobile.shape[:-1])}, "
            "one weight a point"
        )


@torch.no_grad()
def optimal_rotation(covariance: Tensor) -> Tensor:
    """Proper rotation that brings one centred point set closest to another.

    Parameters
    ----------
    covariance : Tensor, shape (..., 3, 3)
        Sum over points of mobile times target coordinates: ``sum_n mobile[n, i] target[n, j]``.

    Returns
    -------
    Tensor, shape (..., 3, 3)
        ``R`` of least ``sum_n |R mobile[n] - target[n]|^2``; one of them where it is not unique.
    """
    u, _, vh = torch.linalg.svd(covariance)
    # Of the two orthogonal optima the reflection is avoided by turning the weakest axis.
    handedness = torch.linalg.det(u) * torch.linalg.det(vh)
    turn = torch.ones_like(covariance[..., 0])
    turn[..., 2] = torch.where(handedness < 0, -1.0, 1.0)
    return (vh.mT * turn[..., None, :]) @ u.mT


@torch.no_grad()
def superpose(mobile: Tensor, target: Tensor, mask: Tensor) -> Rigid:
    """Rigid transform that brings ``mobile`` closest to ``target`` (weighted least squares).

    The rotation is proper (no reflection) and computed in float64. No gradient flows. Where fewer
    than three independent points are weighted the optimum is not unique: one of the optimal
    transforms is returned, and the identity where no point is weighted.

    Parameters
    ----------
    mobile, target : Tensor, shape (..., N, 3)
        Å; point i of one corresponds to point i of the other.
    mask : Tensor, shape (..., N)
        Non-negative weight of each point; 0 leaves it out, whatever its coordinates, NaN included.

    Returns
    -------
    Rigid, batch shape (...)
        ``superpose(a, b, m).unsqueeze(-1).apply(a)`` lies on ``b``; in the type of ``mobile``.

    Raises
    ------
    InputError
        If the shapes do not agree.

    References
    ----------
    Kabsch (1978), Acta Cryst. A34, 827, for the handling of reflections.
    """
    _check(mobile, target, mask)
    weight = mask.double()[..., None]
    kept = weight > 0
    x = mobile.double().masked_fill(~kept, 0.0)
    y = target.double().masked_fill(~kept, 0.0)
    total = weight.sum(-2).clamp(min=torch.finfo(torch.float64).tiny)
    x_mean = (weight * x).sum(-2) / total
    y_mean = (weight * y).sum(-2) / total
    covariance = ((x - x_mean[..., None, :]) * weight).mT @ (y - y_mean[..., None, :])
    rotation = optimal_rotation(covariance)
    translation = y_mean - (rotation @ x_mean[..., None])[..., 0]
    return Rigid(rotation, translation).to(mobile.dtype)


def rmsd(mobile: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Root mean square distance of corresponding points, as they lie (no superposition).

    Parameters
    ----------
    mobile, target : Tensor, shape (..., N, 3)
    mask : Tensor, shape (..., N)
        Non-negative weight of each point.

    Returns
    -------
    Tensor, shape (...)
        Å; 0 where no point is weighted.

    Raises
    ------
    InputError
        If the shapes do not agree.
    """
    _check(mobile, target, mask)
    squared = (mobile - target).square().sum(-1).masked_fill(mask <= 0, 0.0)
    weight = mask.to(squared.dtype)
    total = weight.sum(-1)
    mean = (weight * squared).sum(-1) / torch.where(total > 0, total, torch.ones_like(total))
    return mean.sqrt()


def superposed_rmsd(mobile: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Root mean square distance (...) after the best superposition; arguments as in `rmsd`."""
    moved = superpose(mobile, target, mask).unsqueeze(-1).apply(mobile)
    return rmsd(moved, target, mask)
