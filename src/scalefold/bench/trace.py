"""A trace of the device's work, and what in it took the time.

torch's profiler writes a Chrome trace. The numbers here are read from that file, so a table agrees
with the picture in a trace viewer (https://ui.perfetto.dev).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_DEVICE_WORK: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES: Final = frozenset({"cuda_runtime", "cuda_driver"})


@dataclass(frozen=True)
class Span:
    """Something with a beginning and an end, in seconds of the trace's clock.

    Attributes
    ----------
    thread : int
        Of the host; of device work, the thread that launched it.
    launched : float
        When device work was launched, else the start.
    sequence : int or None
        Links an operation of forward with the node of backward that it left.
    forward_thread : int
        Of a node of backward: torch's number of the thread that ran forward; else 0.
    """

    name: str
    start: float
    end: float
    thread: int
    launched: float
    sequence: int | None = None
    forward_thread: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class Trace:
    """What happened.

    Attributes
    ----------
    work : list of Span
        What the device ran, by start: kernels, copies, fills. On a CPU, operations that no
        other calls.
    operations : list of Span
        torch's operations and nodes of backward; empty if only the device was traced.
    ranges : list of Span
        Of ``record_function``.
    """

    work: list[Span]
    operations: list[Span]
    ranges: list[Span]

    @property
    def busy_seconds(self) -> float:
        """Time in which the device ran something; work on several streams at a time counts once."""
        busy, end = 0.0, float("-inf")
        for span in self.work:
            busy += max(0.0, span.end - max(span.start, end))
            end = max(end, span.end)
        return busy


def trace(
    work: Callable[[], object], file: Path, device: torch.device, *, host: bool = True
) -> Trace:
    """Run some work under the profiler.

    Parameters
    ----------
    work : callable
        Has run before, so that nothing is compiled or captured in it.
    file : Path
        Chrome trace to write, ``.json.gz``.
    host : bool
        Also record the host's operations; with them the host, and where it is slow also the
        device, takes longer, but each kernel keeps its length.
    """
    _recorded(work, device, host=host).export_chrome_trace(str(file))
    return read_trace(file)


def gpu_work(work: Callable[[], object], device: torch.device) -> Trace:
    """What a GPU runs in some work, without a file: of 100,000 launches, that takes long to write.

    Parameters
    ----------
    work : callable
        Has run before.
    """
    profiler = _recorded(work, device, host=False).profiler
    assert profiler is not None
    assert profiler.kineto_results is not None
    spans = [
        Span(event.name(), event.start_ns() * 1e-9, event.end_ns() * 1e-9, -1, 0.0)
        for event in profiler.kineto_results.events()
        if event.device_type() == DeviceType.CUDA
    ]
    return Trace(sorted(spans, key=lambda span: span.start), [], [])


def _recorded(work: Callable[[], object], device: torch.device, *, host: bool) -> profile:
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CUDA] if on_gpu else []
    if host or not on_gpu:
        activities.append(ProfilerActivity.CPU)
    if on_gpu:
        torch.cuda.synchronize(device)
    with profile(activities=activities, acc_events=True) as recorded:
        work()
        if on_gpu:
            torch.cuda.synchronize(device)
    return recorded


def read_trace(file: Path) -> Trace:
    """Read a Chrome trace of torch's profiler."""
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        events = [e for e in json.load(stream)["traceEvents"] if e.get("ph") == "X"]
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    operations = _spans(e for e in events if e.get("cat") == "cpu_op")
    work = [
        _device_span(event, launches.get(event["args"].get("correlation")))
        for event in events
        if event.get("cat") in _DEVICE_WORK
    ]
    return Trace(
        work=sorted(work or _outermost(operations), key=lambda span: span.start),
        operations=operations,
        ranges=_spans(e for e in events if e.get("cat") == "user_annotation"),
    )


def enclosing(spans: Sequence[Span], moments: Sequence[tuple[int, float]]) -> list[list[Span]]:
    """For each (thread, time), the spans on that thread around it, outermost first."""
    found: list[list[Span]] = [[] for _ in moments]
    by_thread: dict[int, list[Span]] = {}
    for span in spans:
        by_thread.setdefault(span.thread, []).append(span)
    asked: dict[int, list[int]] = {}
    for number, (thread, _) in enumerate(moments):
        asked.setdefault(thread, []).append(number)
    for thread, numbers in asked.items():
        coming = iter(sorted(by_thread.get(thread, []), key=lambda s: (s.start, -s.end)))
        following = next(coming, None)
        around: list[Span] = []
        for number in sorted(numbers, key=lambda n: moments[n][1]):
            moment = moments[number][1]
            while following is not None and following.start <= moment:
                around = [span for span in around if span.end > following.start]
                around.append(following)
                following = next(coming, None)
            around = [span for span in around if span.end >= moment]
            found[number] = list(around)
    return found


def _spans(events: Iterable[dict[str, Any]]) -> list[Span]:
    return [_span(event) for event in events]


def _span(event: dict[str, Any]) -> Span:
    start, arguments = event["ts"] * 1e-6, event.get("args", {})
    return Span(
        name=event["name"],
        start=start,
        end=start + event["dur"] * 1e-6,
        thread=event["tid"],
        launched=start,
        sequence=arguments.get("Sequence number"),
        forward_thread=arguments.get("Fwd thread id", 0),
    )


def _device_span(event: dict[str, Any], launch: dict[str, Any] | None) -> Span:
    start = event["ts"] * 1e-6
    thread, launched = (-1, start) if launch is None else (launch["tid"], launch["ts"] * 1e-6)
    return Span(event["name"], start, start + event["dur"] * 1e-6, thread, launched)


def _outermost(operations: Sequence[Span]) -> Iterator[Span]:
    """Operations that no other calls; nodes of backward are no operations."""
    end: dict[int, float] = {}
    for span in sorted(operations, key=lambda span: (span.start, -span.end)):
        is_node = span.forward_thread or span.name.startswith("autograd::")
        if not is_node and span.start >= end.get(span.thread, float("-inf")):
            end[span.thread] = span.end
            yield span
