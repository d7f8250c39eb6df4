"""The end of a step: clip by the global norm, Adam, weight average, working copy."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from scalefold.bench.kernels.case import Inputs, KernelCase, Work
from scalefold.ops.triton import optimiser_kernels

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-6
_SHARE, _CLIP_NORM, _RATE = 1e-3, 0.1, 1e-3

_SIZE = 93 << 20
"""Elements of each flat buffer: a little more than the full model's."""


def cases() -> list[KernelCase]:
    """All parameters of the full model, their gradient in float32, as a step's sum is."""
    # Gradient read for the norm and again; weights, moments and average read and written.
    moved = 4 * (2 + 4 * 2) + 2  # and the working copy in bfloat16 written: bytes an element
    return [
        KernelCase(
            op="optimiser",
            shape=f"{_SIZE >> 20} Mi parameters",
            setting="initial training",
            inputs=partial(_inputs, False),
            check_inputs=partial(_inputs, True),
            reference=_reference,
            ours=_ours,
            forward=Work(moved * _SIZE),
            backward=Work(0),
        )
    ]


def _inputs(keep: bool, device: torch.device, dtype: torch.dtype) -> Inputs:
    """State after some updates; ``keep``: work on copies, so that another can have the same."""
    weights, gradient, first = (torch.randn(_SIZE, device=device) for _ in range(3))
    second = first.square() + 0.1
    working = weights.bfloat16()
    return (weights, gradient, first, second, weights + 0.1, working), keep


def _reference(state: tuple[Tensor, ...], keep: bool) -> tuple[Tensor, ...]:
    weights, gradient, first, second, average, _ = state
    gradient = gradient * (_CLIP_NORM / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp(max=1)
    first = first.lerp(gradient, 1 - _BETA1)
    second = second.lerp(gradient.square(), 1 - _BETA2)
    # The first update after the state's beginning: its count is 1.
    denominator = second.sqrt() / (1 - _BETA2) ** 0.5 + _EPS
    weights = weights - _RATE / (1 - _BETA1) * first / denominator
    average = average.lerp(weights, _SHARE)
    return weights, first, second, average


def _ours(state: tuple[Tensor, ...], keep: bool) -> tuple[Tensor, ...]:
    weights, gradient, first, second, average, working = state
    kernels = optimiser_kernels("triton", weights.device)
    assert kernels is not None
    if keep:
        weights, first, second, average = (t.clone() for t in (weights, first, second, average))
    updates, averaged = (weights.new_zeros((), dtype=torch.float64) for _ in range(2))
    sums, counts = kernels.gradient_square_sums(None, gradient, updates, averaged)
    kernels.apply_update(
        weights,
        first,
        second,
        average,
        working,
        updates,
        averaged,
        None,
        gradient,
        sums,
        counts,
        torch.full((), _RATE, dtype=torch.float64, device=weights.device),
        torch.ones((), dtype=torch.bool, device=weights.device),
        1,
        _CLIP_NORM,
        kernels.AdamConstants(_BETA1, _BETA2, _EPS, _SHARE, _SHARE),
    )
    return weights, first, second, average
