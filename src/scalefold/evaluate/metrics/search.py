"""Search for good superpositions of two chains whose residues correspond one to one.

The optimum of TM-score and GDT has no closed form. The heuristic is the published one (Zhang &
Skolnick 2004). It superposes every window of L, L/2, L/4, ... residues. Then it superposes only the
residues that came close, again and again, until these stay the same. All windows of a length are
treated at once.

A superposition ``|R x + t - y|^2`` is linear in 17 products of a pair's coordinates, and the sums
that a least-squares fit needs are sums of the same products. So one matrix product gives all fits,
another all distances, whatever the number of windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from scalefold.geometry.superposition import optimal_rotation

_SHORTEST_WINDOW: Final = 4
_WINDOW_LENGTHS: Final = 6
_REFINEMENTS: Final = 20
_FEWEST_REFITTED: Final = 3
_WIDENING_ANGSTROM: Final = 0.5
_DISTANCES_AT_ONCE: Final = 1 << 21  # bounds memory: windows x residues in float64


def superposed_distances(
    mobile: Tensor, target: Tensor, search_radius_angstrom: float
) -> Iterator[Tensor]:
    """Squared distances of corresponding points in every superposition that the search visits.

    Parameters
    ----------
    mobile, target : Tensor, shape (P, 3), float64
        Å; P is at least 1.
    search_radius_angstrom : float
        Points are refitted if closer than this less 1 Å after the first fit, than this plus 1 Å
        later on.

    Yields
    ------
    Tensor, shape (K, P), float64
        Å^2; K varies.
    """
    products = _pair_products(mobile, target)
    num_points = len(mobile)
    for length in window_lengths(num_points):
        starts = torch.arange(num_points - length + 1)
        for some in starts.split(max(1, _DISTANCES_AT_ONCE // num_points)):
            offset = torch.arange(num_points) - some[:, None]
            fitted = (offset >= 0) & (offset < length)
            squared = _fit(fitted, products)
            yield squared
            chosen = _close(squared, search_radius_angstrom - 1.0)
            for _ in range(_REFINEMENTS):
                squared = _fit(chosen, products)
                yield squared
                fitted, chosen = chosen, _close(squared, search_radius_angstrom + 1.0)
                moving = (fitted != chosen).any(-1)
                if not moving.any():
                    break
                chosen = chosen[moving]


def window_lengths(num_points: int) -> list[int]:
    """Lengths of the first fragments: all, a half, ... a sixteenth, 4; never below 4."""
    shortest = min(_SHORTEST_WINDOW, num_points)
    lengths = [num_points >> k for k in range(_WINDOW_LENGTHS - 1)]
    return [length for length in lengths if length > shortest] + [shortest]


def _pair_products(mobile: Tensor, target: Tensor) -> Tensor:
    """Products (17, P) that fits and distances are linear in: 1, x, y, x_i y_j, |x|^2 + |y|^2."""
    x, y = mobile - mobile.mean(0), target - target.mean(0)
    outer = (x[:, :, None] * y[:, None, :]).flatten(1)
    norms = (x * x).sum(-1, keepdim=True) + (y * y).sum(-1, keepdim=True)
    return torch.cat([torch.ones_like(norms), x, y, outer, norms], 1).T.contiguous()


def _fit(chosen: Tensor, products: Tensor) -> Tensor:
    """Squared distances (K, P) of all points after least-squares fits on the chosen (K, P)."""
    sums = chosen.double() @ products.T
    means = sums / sums[:, :1]
    x, y = means[:, 1:4], means[:, 4:7]
    covariance = means[:, 7:16].unflatten(-1, (3, 3)) - x[:, :, None] * y[:, None, :]
    rotation = optimal_rotation(covariance)
    shift = y - (rotation * x[:, None, :]).sum(-1)
    coefficients = torch.cat(
        [
            (shift * shift).sum(-1, keepdim=True),
            2.0 * (rotation * shift[:, :, None]).sum(-2),
            -2.0 * shift,
            -2.0 * rotation.mT.flatten(1),
            torch.ones_like(sums[:, :1]),
        ],
        1,
    )
    return (coefficients @ products).clamp_(min=0.0)


def _close(squared: Tensor, radius: float) -> Tensor:
    """Points (K, P) closer than the radius, widened in steps until three points are."""
    num_points = squared.shape[-1]
    if num_points <= _FEWEST_REFITTED:
        radii = torch.full_like(squared[:, :1], radius)
        inside = squared < radii**2
        # Too few points to widen for: without any inside, the fit stays on all of them.
        return inside | ~inside.any(-1, keepdim=True)
    third = squared.kthvalue(_FEWEST_REFITTED, -1, keepdim=True).values.sqrt()
    steps = ((third - radius) / _WIDENING_ANGSTROM).floor().add(1.0).clamp(min=0.0)
    return squared < (radius + steps * _WIDENING_ANGSTROM) ** 2
