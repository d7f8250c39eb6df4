"""What ranks tell each other at each step beside gradients: one short vector, summed.

With the numbers of the step go the wishes to end: so all ranks end after the same step, and no
exchange is made for that alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

LENGTH: Final = 64
"""Of the vector whatever is in it: a rank that could not make a step must send as much."""

ABSENT, NOT_FINITE, STOP, TARGET, WAIT_SECONDS, COLUMNS = range(6)
"""Places in the vector; after the last of them the sums of the step's numbers."""


@dataclass(frozen=True)
class Notice:
    """What the host of a rank has to tell.

    Attributes
    ----------
    stop : bool
        A signal asks for the end.
    target : bool
        The target is reached.
    wait_seconds : float
        How long the step waited for its samples.
    """

    stop: bool = False
    target: bool = False
    wait_seconds: float = 0.0


def pack(per_sample: Tensor, not_finite: Tensor, notice: Notice) -> Tensor:
    """The vector of one rank, on its device.

    Parameters
    ----------
    per_sample : Tensor, shape (samples, columns), float32
        Numbers of its samples; no samples: it is absent from this step.
    not_finite : Tensor, scalar
        How many of the samples have a loss or gradient that is not finite.
    notice : Notice
    """
    num_samples, num_columns = per_sample.shape
    if COLUMNS + num_columns > LENGTH:
        raise ValueError(f"{num_columns} numbers a sample, there is room for {LENGTH - COLUMNS}")
    told = torch.zeros(COLUMNS)
    told[ABSENT] = num_samples == 0
    told[STOP], told[TARGET], told[WAIT_SECONDS] = notice.stop, notice.target, notice.wait_seconds
    if per_sample.is_cuda:  # from pinned memory, the copy does not make the host wait
        told = told.pin_memory()
    vector = per_sample.new_zeros(LENGTH)
    vector[:COLUMNS].copy_(told, non_blocking=True)
    vector[NOT_FINITE].copy_(not_finite)
    vector[COLUMNS : COLUMNS + num_columns].copy_(per_sample.sum(0))
    return vector
