"""The optimiser step over flat buffers in two launches.

The first launch reads the gradient for its norm, the second does all the rest: clipping, Adam, the
average of the weights, and the working copy in the narrow type. Nothing waits for the host: rate,
counters and the finite flag are tensors on the device, so a step can be captured in a CUDA graph.

Legend: P elements of a flat buffer; the gradient of the first W of them may be in a narrower type.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from scalefold_kernels.optimiser.kernel import (
    accumulate_kernel,
    square_sums_kernel,
    update_kernel,
)
from scalefold_kernels.tiles import architecture, tile

CLIP_EPS = 1e-6
"""Added to the norm, as ``torch.nn.utils.clip_grad_norm_`` does."""

MAX_SUMS = 1024
"""Programs of the first launch, and partial sums that each program of the second adds up."""


def num_sums(size: int) -> int:
    """Number of partial sums for a buffer of ``size`` elements: a power of two."""
    return min(MAX_SUMS, triton.next_power_of_2(triton.cdiv(size, 4096)))


class AdamConstants(NamedTuple):
    """What does not change in a run.

    Attributes
    ----------
    beta1, beta2, eps : float
        Of Adam.
    share, first_share : float
        Weight of the newest weights in their average, and of the first ones.
    """

    beta1: float
    beta2: float
    eps: float
    share: float
    first_share: float


@torch.library.custom_op("scalefold::gradient_square_sums", mutates_args=())
def gradient_square_sums(
    narrow_W: Tensor | None,
    wide_P: Tensor,
    updates: Tensor | None = None,
    averaged: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """First launch: partial sums of the gradient's squares.

    Parameters
    ----------
    narrow_W : Tensor or None
        Gradient of the first W elements, any floating-point type; None if ``wide_P`` holds all.
    wide_P : Tensor, float32
        Gradient of the others, at their places; what is below W is not read.
    updates, averaged : Tensor or None, scalar, float64
        Counters, copied for `apply_update`; both or none.

    Returns
    -------
    sums : Tensor, shape (num_sums(P),), float32
    counts : Tensor, shape (2,), float64
        No elements without counters.
    """
    size = wide_P.numel()
    sums = wide_P.new_empty(num_sums(size))
    counts = _counts(wide_P, updates)
    sizes = tile("optimiser_norm", architecture(wide_P.device), {"P": size})
    square_sums_kernel[(sums.numel(),)](
        narrow_W,
        wide_P,
        sums,
        updates,
        averaged,
        counts,
        0 if narrow_W is None else narrow_W.numel(),
        size,
        HAS_NARROW=narrow_W is not None,
        ITERATIONS=triton.cdiv(size, sums.numel() * sizes["BLOCK"]),
        **sizes,
    )
    return sums, counts


@gradient_square_sums.register_fake
def _(
    narrow_W: Tensor | None,
    wide_P: Tensor,
    updates: Tensor | None = None,
    averaged: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return wide_P.new_empty(num_sums(wide_P.numel())), _counts(wide_P, updates)


def _counts(wide_P: Tensor, updates: Tensor | None) -> Tensor:
    return wide_P.new_empty(0 if updates is None else 2, dtype=torch.float64)


@torch.library.custom_op("scalefold::accumulate_gradient", mutates_args=("total_P", "norm"))
def accumulate_gradient(
    total_P: Tensor,
    norm: Tensor,
    narrow_W: Tensor | None,
    wide_P: Tensor,
    sums: Tensor,
    clip_norm: float | None,
    first: bool,
) -> None:
    """Add one sample's gradient to the step's, clipped by its own norm if ``clip_norm`` is given.

    Parameters
    ----------
    total_P : Tensor, float32
        Sum so far; overwritten if ``first``.
    norm : Tensor, scalar, float32
        Gets the sample's norm, before clipping.
    narrow_W, wide_P, sums : Tensor
        As given to, and returned by, `gradient_square_sums`.
    clip_norm : float or None
    first : bool
    """
    size = wide_P.numel()
    sizes = tile("optimiser_update", architecture(wide_P.device), {"P": size})
    accumulate_kernel[(triton.cdiv(size, sizes["BLOCK"]),)](
        narrow_W,
        wide_P,
        total_P,
        sums,
        norm,
        0 if narrow_W is None else narrow_W.numel(),
        size,
        CLIP=clip_norm is not None,
        CLIP_NORM=clip_norm,
        CLIP_EPS=CLIP_EPS,
        FIRST=first,
        HAS_NARROW=narrow_W is not None,
        NUM_SUMS=sums.numel(),
        **sizes,
    )


@torch.library.custom_op(
    "scalefold::apply_update",
    mutates_args=(
        "weights_P",
        "first_moment_P",
        "second_moment_P",
        "average_P",
        "working_W",
        "updates",
        "averaged",
    ),
)
def apply_update(
    weights_P: Tensor,
    first_moment_P: Tensor,
    second_moment_P: Tensor,
    average_P: Tensor,
    working_W: Tensor | None,
    updates: Tensor,
    averaged: Tensor,
    narrow_W: Tensor | None,
    wide_P: Tensor,
    sums: Tensor,
    counts: Tensor,
    rate: Tensor,
    finite: Tensor,
    num_samples: int,
    clip_norm: float | None,
    constants: list[float],
) -> tuple[Tensor, Tensor]:
    """Second launch: clip, Adam, average, working copy, counters; all in place.

    Parameters
    ----------
    weights_P, first_moment_P, second_moment_P, average_P : Tensor, float32
    working_W : Tensor or None
        Copy of the first W weights in a narrower type.
    updates, averaged : Tensor, scalar, float64
        Updates of the weights and of their average so far.
    narrow_W, wide_P : Tensor
        The gradient, as given to `gradient_square_sums`: a sum over ``num_samples`` samples.
    sums, counts : Tensor
        What that returned. Where samples were clipped one by one (``clip_norm`` None), ``sums``
        holds their norms instead, followed by zeros up to a power of two.
    rate : Tensor, scalar, float64
    finite : Tensor, scalar, bool
        Whether the loss was finite.
    num_samples : int
    clip_norm : float or None
        Norm to which the mean gradient is clipped.
    constants : AdamConstants

    Returns
    -------
    norm : Tensor, scalar, float32
        Before clipping: of the mean gradient, or the mean of the samples' norms.
    applied : Tensor, scalar, bool
        Whether ``finite`` and the norm were; if not, nothing has changed.
    """
    adam = AdamConstants(*constants)
    size = wide_P.numel()
    norm = wide_P.new_empty(())
    applied = finite.new_empty(())
    num_narrow = max(0 if t is None else t.numel() for t in (narrow_W, working_W))
    sizes = tile("optimiser_update", architecture(wide_P.device), {"P": size})
    update_kernel[(triton.cdiv(size, sizes["BLOCK"]),)](
        weights_P,
        narrow_W,
        wide_P,
        first_moment_P,
        second_moment_P,
        average_P,
        working_W,
        sums,
        counts,
        rate,
        finite,
        updates,
        averaged,
        norm,
        applied,
        num_narrow,
        size,
        SCALE=1.0 / num_samples,
        CLIP=clip_norm is not None,
        CLIP_NORM=clip_norm,
        CLIP_EPS=CLIP_EPS,
        LOG_BETA1=math.log(adam.beta1),
        LOG_BETA2=math.log(adam.beta2),
        ONE_MINUS_BETA1=1.0 - adam.beta1,
        ONE_MINUS_BETA2=1.0 - adam.beta2,
        EPS=adam.eps,
        SHARE=adam.share,
        FIRST_SHARE=adam.first_share,
        HAS_NARROW=narrow_W is not None,
        HAS_WORKING=working_W is not None,
        NUM_SUMS=sums.numel(),
        **sizes,
    )
    return norm, applied


@apply_update.register_fake
def _(weights_P: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return weights_P.new_empty(()), weights_P.new_empty((), dtype=torch.bool)
