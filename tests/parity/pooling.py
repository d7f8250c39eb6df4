"""Float32's errors, and what many runs say of them, tensor by tensor.

The error of a tensor in one run is one draw: of a scalar in a single number, and of a gradient
little more, because a few badly conditioned numbers (a clash that just begins) govern all of them.
The quotient of two draws has no mean and no variance, so runs with different weights are pooled
before two codes are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tests.parity.test_whole_golden import Result
from torch import Tensor

KINDS = ("outputs", "terms", "gradients")
ZERO_GRADIENT = 1e-8
"""Of the largest: smaller gradients are rounding alone, or of what is nearly unread."""

Errors = dict[str, dict[str, float]]
"""Norm of the difference over the norm, by kind and tensor."""


def zero_floor(true: dict[str, Tensor]) -> float:
    """Norm below which a gradient counts as zero."""
    return ZERO_GRADIENT * max(value.norm().item() for value in true.values())


def float32_errors(found: Result, true: Result) -> Errors:
    """Of all tensors but gradients that are rounding alone, and terms that only one code has."""
    errors: Errors = {}
    for kind in KINDS:
        values, reference = getattr(found, kind), getattr(true, kind)
        floor = zero_floor(reference) if kind == "gradients" else 0.0
        errors[kind] = {
            name: (values[name].double() - value).norm().item() / value.norm().item()
            for name, value in reference.items()
            if name in values and value.norm().item() > floor
        }
    return errors


class Pooled(NamedTuple):
    """What runs say of one tensor.

    Attributes
    ----------
    ours, oracle : float
        Root mean square of the errors over the runs.
    ratio : float
        Of the two. One run whose errors are large decides it.
    each_alike : float
        The same, but errors of a run are first divided by the root mean square of both codes' in
        it: each run counts alike, whatever its conditioning.
    """

    ours: float
    oracle: float
    ratio: float
    each_alike: float


def pool(ours: Sequence[float], oracle: Sequence[float]) -> Pooled:
    """Pool the errors of one tensor in many runs, in the same order."""
    squares = np.square([ours, oracle])
    mean = squares.mean(1)
    share = (squares / squares.sum(0)).mean(1)
    return Pooled(
        *np.sqrt(mean).tolist(), *np.sqrt([mean[0] / mean[1], share[0] / share[1]]).tolist()
    )


def pool_all(ours: Sequence[Errors], oracle: Sequence[Errors]) -> dict[str, dict[str, Pooled]]:
    """Of each kind, each tensor that counts in all runs."""
    return {
        kind: {
            name: pool([run[kind][name] for run in ours], [run[kind][name] for run in oracle])
            for name in ours[0][kind]
            if all(name in run[kind] for run in (*ours, *oracle))
        }
        for kind in KINDS
    }
