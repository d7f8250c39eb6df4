"""What ranks tell each other at each step beside gradients: one short vector, which they sum.

It holds the step's numbers and the requests to end, so all ranks end after the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

LENGTH: Final = 64
"""Length of the vector; a rank that could not make a step sends the same length."""

ABSENT, NOT_FINITE, STOP, ENDED_BY_EVALUATION, WAIT_SECONDS, COLUMNS = range(6)
"""Places in the vector; from the last of them on, the sums of the step's numbers."""


@dataclass(frozen=True)
class Notice:
    """What a rank tells the others. Of all ranks together, a flag is set if any rank sets it.

    Attributes
    ----------
    stop : bool
        A signal asks for the end.
    ended_by_evaluation : bool
        An evaluation asks for it: the target is reached, or nothing is gained any more.
    wait_seconds : float
        How long the step waited for its samples; of all ranks, the mean.
    """

    stop: bool = False
    ended_by_evaluation: bool = False
    wait_seconds: float = 0.0


def pack(per_sample: Tensor, not_finite: Tensor, notice: Notice) -> Tensor:
    """Return the vector of one rank, shape (`LENGTH`,), float32, on its device.

    Parameters
    ----------
    per_sample : Tensor, shape (samples, columns), float32
        Numbers of its samples; no samples: it is absent from this step.
    not_finite : Tensor, scalar
        How many of the samples have a loss or gradient that is not finite.
    """
    num_samples, num_columns = per_sample.shape
    if COLUMNS + num_columns > LENGTH:
        raise ValueError(f"{num_columns} numbers a sample, there is room for {LENGTH - COLUMNS}")
    head = torch.zeros(COLUMNS)
    head[ABSENT] = num_samples == 0
    head[STOP], head[WAIT_SECONDS] = notice.stop, notice.wait_seconds
    head[ENDED_BY_EVALUATION] = notice.ended_by_evaluation
    if per_sample.is_cuda:  # from pinned memory, the copy does not make the host wait
        head = head.pin_memory()
    vector = per_sample.new_zeros(LENGTH)
    vector[:COLUMNS].copy_(head, non_blocking=True)
    vector[NOT_FINITE].copy_(not_finite)
    vector[COLUMNS : COLUMNS + num_columns].copy_(per_sample.sum(0))
    return vector


def unpack(summed: Sequence[float], num_ranks: int) -> tuple[bool, Notice, Sequence[float]]:
    """Return what the ranks' vectors say together.

    Returns
    -------
    absent : bool
        Whether a rank had no samples.
    notice : Notice
    sums : sequence of float
        Of each column over all samples; the places after them are 0.
    """
    notice = Notice(
        summed[STOP] > 0, summed[ENDED_BY_EVALUATION] > 0, summed[WAIT_SECONDS] / num_ranks
    )
    return summed[ABSENT] > 0, notice, summed[COLUMNS:]
