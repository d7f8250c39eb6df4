"""Bringing a step's numbers from the device to the host without stalling the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scalefold.train.step import StepNumbers


@dataclass(frozen=True)
class HostNumbers:
    """`StepNumbers` as Python numbers."""

    per_sample: list[dict[str, float]]
    gradient_norm: float
    finite: bool

    def mean(self, name: str) -> float:
        """Mean of a column over the samples."""
        return sum(sample[name] for sample in self.per_sample) / len(self.per_sample)


class Readback:
    """A copy to the host that is under way; on a GPU it waits for its own step only."""

    def __init__(self, numbers: StepNumbers) -> None:
        self._names = numbers.names
        self._shape = numbers.per_sample.shape
        flat = torch.cat(
            [
                numbers.per_sample.flatten(),
                numbers.gradient_norm[None],
                numbers.finite[None].float(),
            ]
        )
        self._event: torch.cuda.Event | None = None
        if flat.is_cuda:
            self._host = torch.empty_like(flat, device="cpu", pin_memory=True)
            self._host.copy_(flat, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = flat

    def get(self) -> HostNumbers:
        """Wait for the copy and return the numbers."""
        if self._event is not None:
            self._event.synchronize()
        rows = self._host[:-2].view(self._shape).tolist()
        return HostNumbers(
            per_sample=[dict(zip(self._names, row)) for row in rows],
            gradient_norm=float(self._host[-2]),
            finite=bool(self._host[-1]),
        )
