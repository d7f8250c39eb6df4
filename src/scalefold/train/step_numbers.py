"""The numbers of a step: on the device, on their way to the host, and there."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from scalefold.parallel.ranks import ALONE, Ranks
from scalefold.train.step_exchange import LENGTH, Notice, unpack


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
    gradient_norm : Tensor, scalar, float32
        Before clipping, see `ClippedMean.finish`.
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
    means : dict of str to float
        Their means over the samples of all ranks.
    finite : bool
        Whether the step was applied.
    absent : bool
        Whether the step was left out because a rank had no samples.
    notice : Notice
        Of all ranks together.
    """

    per_sample: list[dict[str, float]]
    means: dict[str, float]
    gradient_norm: float
    finite: bool
    absent: bool
    notice: Notice


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
        absent, notice, sums = unpack(self._host[:LENGTH].tolist(), self._num_ranks)
        norm, finite = self._host[LENGTH : LENGTH + 2].tolist()
        rows = self._host[LENGTH + 2 :].view(self._shape).tolist()
        num_samples = self._num_ranks * len(rows)
        return HostNumbers(
            per_sample=[dict(zip(self._names, row)) for row in rows],
            means={name: value / num_samples for name, value in zip(self._names, sums)},
            gradient_norm=norm,
            finite=bool(finite),
            absent=absent,
            notice=notice,
        )
