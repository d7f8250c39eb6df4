"""Buckets of a flat gradient buffer, sent to the other ranks as backward completes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from torch import nn

BUCKET_ELEMENTS: Final = 2**23
"""32 MiB of float32: large enough for full bandwidth, small enough to start early (the full model
has about 12 buckets)."""


def bucket_slices(starts: Sequence[int], size: int, elements: int) -> list[slice]:
    """Divide a buffer into contiguous buckets, the last first.

    Backward completes gradients from the model's end, so that is the order in which buckets fill.

    Parameters
    ----------
    starts : sequence of int
        Where parameters begin, ascending, the first at 0; buckets begin at some of these.
    elements : int
        Each bucket has at least this many, except the one at the buffer's start.
    """
    slices, end = [], size
    for start in reversed(starts):
        if end - start >= elements or start == 0:
            slices.append(slice(start, end))
            end = start
    return slices


class FilledBuckets:
    """Tells, while a backward pass runs, which buckets have all of their gradients.

    Buckets are reported in their order on every rank, whatever order gradients arrive in: ranks
    must exchange them in the same order. How many gradients a bucket gets (loss terms of weight 0
    leave some parameters without) is learnt from the first pass, after which all are reported.

    Parameters
    ----------
    parameters : sequence of (Parameter, int)
        With their starts in the buffer.
    """

    def __init__(
        self, parameters: Sequence[tuple[nn.Parameter, int]], buckets: Sequence[slice]
    ) -> None:
        self._buckets = buckets
        self._expected: list[int] | None = None
        self._arrived: list[int] = []
        self._reported = 0
        self._report: Callable[[slice], None] | None = None
        for parameter, start in parameters:
            number = next(n for n, part in enumerate(buckets) if part.start <= start < part.stop)
            parameter.register_post_accumulate_grad_hook(self._hook(number))

    @contextlib.contextmanager
    def watch(self, report: Callable[[slice], None]) -> Iterator[None]:
        """Report each bucket once: as it fills in the backward pass within, or after that."""
        self._arrived = [0] * len(self._buckets)
        self._reported = 0
        self._report = report
        try:
            yield
        finally:
            self._report = None
        for bucket in self._buckets[self._reported :]:
            report(bucket)
        if self._expected is None:
            self._expected = self._arrived

    def _hook(self, number: int) -> Callable[[nn.Parameter], None]:
        def arrived(parameter: nn.Parameter) -> None:
            if self._report is None:
                return
            if number < self._reported:
                raise RuntimeError(
                    "a parameter without a gradient in the first step has one now, after its "
                    "bucket was sent: which parameters are trained must not depend on the data"
                )
            self._arrived[number] += 1
            while (
                self._expected is not None
                and self._reported < len(self._buckets)
                and self._arrived[self._reported] == self._expected[self._reported]
            ):
                self._reported += 1
                self._report(self._buckets[self._reported - 1])

        return arrived
