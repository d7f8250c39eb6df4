"""Bringing a step's numbers from the device to the host without stalling the device."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from scalefold.train import exchange
from scalefold.train.step import StepNumbers


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
    stop, target : bool
        Whether a rank asks for the end; whether because the target is reached.
    wait_seconds : float
        How long ranks waited for their samples, on average.
    """

    per_sample: list[dict[str, float]]
    means: dict[str, float]
    gradient_norm: float
    finite: bool
    absent: bool
    stop: bool
    target: bool
    wait_seconds: float


class Mark:
    """When the work was done that had been asked for so far, on a GPU as its own clock has it."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        self._seconds = time.perf_counter()
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()

    def wait(self) -> None:
        """Wait for that work."""
        if self._event is not None:
            self._event.synchronize()

    def seconds_since(self, earlier: Mark) -> float:
        """Time since an earlier mark of the same device; both must have been waited for."""
        if self._event is None or earlier._event is None:
            return self._seconds - earlier._seconds
        return earlier._event.elapsed_time(self._event) / 1000


class Readback:
    """A copy to the host that is under way; on a GPU it waits for its own step only.

    Attributes
    ----------
    mark : Mark
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
        self.mark = Mark(flat.device)

    def get(self) -> HostNumbers:
        """Wait for the copy and return the numbers."""
        self.mark.wait()
        told = self._host[: exchange.LENGTH].tolist()
        norm, finite = self._host[exchange.LENGTH : exchange.LENGTH + 2].tolist()
        rows = self._host[exchange.LENGTH + 2 :].view(self._shape).tolist()
        num_samples = self._num_ranks * len(rows)
        return HostNumbers(
            per_sample=[dict(zip(self._names, row)) for row in rows],
            means={
                name: value / num_samples
                for name, value in zip(self._names, told[exchange.COLUMNS :])
            },
            gradient_norm=norm,
            finite=bool(finite),
            absent=told[exchange.ABSENT] > 0,
            stop=told[exchange.STOP] > 0,
            target=told[exchange.TARGET] > 0,
            wait_seconds=told[exchange.WAIT_SECONDS] / self._num_ranks,
        )
