"""Search for good superpositions of two chains whose residues correspond one to one.

The optimum of TM-score and GDT has no closed form. The heuristic is the published one (Zhang &
Skolnick 2004). It superposes every window of L, L/2, L/4, ... residues. Then it superposes only the
residues that came close, again and again, until these stay the same. All windows of a length are
treated at once.

On poor predictions and short chains that misses up to 0.05. So triples of residues are superposed
too, and the best of all superpositions climb: a fit in which each residue weighs what it adds to a
score ``sum 1 / (1 + d²/s²)`` never lowers that score. For GDT, s is each of its cutoffs.

A superposition ``|R x + t - y|^2`` is linear in 17 products of a pair's coordinates, and the sums
that a least-squares fit needs are sums of the same products. So one matrix product gives all fits,
another all distances, whatever the number of windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from scalefold.geometry.superposition import optimal_rotation

_SHORTEST_WINDOW: Final = 4
_WINDOW_LENGTHS: Final = 6
_REFINEMENTS: Final = 20
_FEWEST_REFITTED: Final = 3
_WIDENING_ANGSTROM: Final = 0.5
_TRIPLES: Final = 1000
_CLIMBING: Final = 96
_STEPS_UP: Final = 8
_DISTANCES_AT_ONCE: Final = 1 << 21  # bounds memory: windows x residues in float64


def superposed_distances(
    mobile: Tensor, target: Tensor, search_radius_angstrom: float, scales_angstrom: Sequence[float]
) -> Iterator[Tensor]:
    """Squared distances of corresponding points in every superposition that the search visits.

    Parameters
    ----------
    mobile, target : Tensor, shape (P, 3), float64
        Å; P is at least 1.
    search_radius_angstrom : float
        Points are refitted if closer than this less 1 Å after the first fit, than this plus 1 Å
        later on.
    scales_angstrom : sequence of float
        The s of the scores that are climbed.

    Yields
    ------
    Tensor, shape (K, P), float64
        Å^2; K varies.
    """
    products = _pair_products(mobile, target)
    best = [_Best(scale) for scale in scales_angstrom]
    for squared in _visited(products, search_radius_angstrom):
        yield squared
        for one in best:
            one.see(squared)
    for one in best:
        yield from one.climb(products)


def _visited(products: Tensor, search_radius_angstrom: float) -> Iterator[Tensor]:
    """Squared distances of the published search, and those of triples of residues."""
    num_points = products.shape[-1]
    yield _fit(_triples(num_points), products)
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


class _Best:
    """The best superpositions by one score, which climb from there."""

    def __init__(self, scale_angstrom: float) -> None:
        self._scale = scale_angstrom
        self._scores = torch.empty(0, dtype=torch.float64)
        self._squared: Tensor | None = None

    def see(self, squared: Tensor) -> None:
        """Keep those of the superpositions (K, P) that are among the best."""
        scores = torch.cat([self._scores, self._shares(squared).sum(-1)])
        both = squared if self._squared is None else torch.cat([self._squared, squared])
        self._scores, kept = scores.topk(min(_CLIMBING, len(scores)))
        self._squared = both[kept]

    def climb(self, products: Tensor) -> Iterator[Tensor]:
        """Squared distances of each step up."""
        squared = self._squared
        assert squared is not None
        for _ in range(_STEPS_UP):
            squared = _fit(self._shares(squared).square(), products)
            yield squared

    def _shares(self, squared: Tensor) -> Tensor:
        return (1.0 + squared / self._scale**2).reciprocal()


def _triples(num_points: int) -> Tensor:
    """Random triples of points (K, P), always the same ones."""
    draws = torch.rand(_TRIPLES, num_points, generator=torch.Generator().manual_seed(0))
    chosen = torch.zeros(_TRIPLES, num_points, dtype=torch.bool)
    return chosen.scatter_(1, draws.topk(min(3, num_points)).indices, value=True)


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


def _fit(weights: Tensor, products: Tensor) -> Tensor:
    """Squared distances (K, P) of all points after least-squares fits with weights (K, P)."""
    sums = weights.double() @ products.T
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
