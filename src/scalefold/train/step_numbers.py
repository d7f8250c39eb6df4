"""The numbers of a step: those of each rank, their exchange between ranks, their copy to the host.

Beside gradients, ranks exchange one short vector at each step. It holds the sums of the step's
numbers and the stop requests, so all ranks end after the same step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from scalefold.parallel.ranks import ALONE, Ranks

LENGTH: Final = 64
"""Length of the vector that ranks exchange. A rank that could not make a step sends the same
length.
"""

ABSENT, NOT_FINITE, STOP, ENDED_BY_EVALUATION, WAIT_SECONDS, COLUMNS = range(6)
"""Places in the vector; after the last of them the sums of the step's numbers."""


@dataclass(frozen=True)
class Notice:
    """What the host of a rank tells the other ranks.

    Attributes
    ----------
    stop : bool
        A signal asks for the end.
    ended_by_evaluation : bool
        An evaluation asks for it: the target is reached, or nothing is gained any more.
    wait_seconds : float
        How long the step waited for its samples.
    """

    stop: bool = False
    ended_by_evaluation: bool = False
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


@dataclass(frozen=True, eq=False)
class StepNumbers:
    """The numbers of a step, still on the device.

    Attributes
    ----------
    names : tuple of str
        Columns of ``per_sample``: loss, norm of the sample's gradient, lDDT-Ca of the crop, and
        each unweighted loss term as ``loss/<name>``.
    per_sample : Tensor, shape (samples, columns), float32
        Of this rank.
    exchanged : Tensor, shape (`LENGTH`,), float32
        Sums over all ranks, see `pack`.
    num_ranks : int
    gradient_norm : Tensor, scalar, float32
        Before clipping, see `ClippedMean.finish`.
    finite : Tensor, scalar, bool
        Whether the step was applied.
    """

    names: tuple[str, ...]
    per_sample: Tensor
    exchanged: Tensor
    num_ranks: int
    gradient_norm: Tensor
    finite: Tensor


@dataclass(frozen=True)
class HostNumbers:
    """`StepNumbers` as Python numbers; all but ``per_sample`` are the same on all ranks.

    Attributes
    ----------
    per_sample : list of dict
        Numbers of this rank's samples.
    means : dict of str to float
        Their means over the samples of all ranks.
    gradient_norm : float
    finite : bool
        Whether the step was applied.
    absent : bool
        Whether it was not because a rank had no samples.
    stop : bool
        Whether a signal asks a rank for the end.
    ended_by_evaluation : bool
        Whether an evaluation does.
    wait_seconds : float
        How long ranks waited for their samples, on average.
    """

    per_sample: list[dict[str, float]]
    means: dict[str, float]
    gradient_norm: float
    finite: bool
    absent: bool
    stop: bool
    ended_by_evaluation: bool
    wait_seconds: float


class DeviceTime:
    """The time at which the work queued so far is done; on a GPU, by its own clock."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        self._seconds = time.perf_counter()
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()

    def wait(self, ranks: Ranks = ALONE) -> None:
        """Wait for that work, which may exchange with these ranks."""
        if self._event is not None:
            ranks.synchronize(self._event)

    def seconds_since(self, earlier: DeviceTime) -> float:
        """Time since an earlier time of the same device; both must have been waited for."""
        if self._event is None or earlier._event is None:
            return self._seconds - earlier._seconds
        return earlier._event.elapsed_time(self._event) / 1000


class Readback:
    """A copy of `StepNumbers` to the host that is under way. The device goes on with the next step.

    Attributes
    ----------
    ended : DeviceTime
        The end of the step.
    """

    def __init__(self, numbers: StepNumbers) -> None:
        self._names, self._num_ranks = numbers.names, numbers.num_ranks
        self._shape = numbers.per_sample.shape
        flat = torch.cat(
            [
                numbers.exchanged,
                numbers.gradient_norm[None],
                numbers.finite[None].float(),
                numbers.per_sample.flatten(),
            ]
        )
        if flat.is_cuda:
            self._host = torch.empty_like(flat, device="cpu", pin_memory=True)
            self._host.copy_(flat, non_blocking=True)
        else:
            self._host = flat
        self.ended = DeviceTime(flat.device)

    def get(self, ranks: Ranks = ALONE) -> HostNumbers:
        """Wait for the copy, as `Ranks.synchronize` does, and return the numbers."""
        self.ended.wait(ranks)
        exchanged = self._host[:LENGTH].tolist()
        norm, finite = self._host[LENGTH : LENGTH + 2].tolist()
        rows = self._host[LENGTH + 2 :].view(self._shape).tolist()
        num_samples = self._num_ranks * len(rows)
        return HostNumbers(
            per_sample=[dict(zip(self._names, row)) for row in rows],
            means={
                name: value / num_samples for name, value in zip(self._names, exchanged[COLUMNS:])
            },
            gradient_norm=norm,
            finite=bool(finite),
            absent=exchanged[ABSENT] > 0,
            stop=exchanged[STOP] > 0,
            ended_by_evaluation=exchanged[ENDED_BY_EVALUATION] > 0,
            wait_seconds=exchanged[WAIT_SECONDS] / self._num_ranks,
        )
