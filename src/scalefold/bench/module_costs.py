"""Which module of the model the device's time belongs to, forward and backward.

A kernel of forward belongs to the innermost module that was running when it was launched. A kernel
of backward is launched by a node of autograd, which carries the number of the operation that left
it in forward, and belongs to that operation's module.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from torch import nn
from torch.autograd.profiler import record_function

from scalefold.bench.trace import Span, Trace, enclosing

Phase = Literal["forward", "backward", "recomputation"]

_MODULE: Final = "module "
_NODE: Final = "autograd::engine::evaluate_function"
_NUMBERS: Final = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class Cost:
    """What one kernel costs in one module, over all its launches.

    Attributes
    ----------
    module : str
        Qualified name; numbers of blocks are ``*``, so that equal blocks are one row.
    phase : {"forward", "backward", "recomputation"}
    """

    module: str
    phase: Phase
    kernel: str
    seconds: float
    launches: int


@contextlib.contextmanager
def named_modules(model: nn.Module) -> Iterator[None]:
    """Within it, each call of a module of the model is a range in traces."""
    handles = []
    for name, module in model.named_modules():
        running: list[record_function] = []

        def begin(*_: object, name: str = name, running: list = running) -> None:
            running.append(named_range(name or "(model)").__enter__())

        def end(*_: object, running: list = running) -> None:
            running.pop().__exit__(None, None, None)

        handles.append(module.register_forward_pre_hook(begin))
        # Recomputation leaves a forward early, by an exception.
        handles.append(module.register_forward_hook(end, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def named_range(name: str) -> record_function:
    """Context that is a range in traces, for work that is no module's."""
    return record_function(_MODULE + name)


def module_costs(trace: Trace) -> list[Cost]:
    """Sum the device's time by module, phase and kernel; the most expensive first."""
    ranges = [span for span in trace.ranges if span.name.startswith(_MODULE)]
    nodes = [span for span in trace.operations if span.name.startswith(_NODE)]
    module_of_node = _forward_modules(trace, ranges)
    around = enclosing([*ranges, *nodes], [(s.thread, s.launched) for s in trace.work])
    seconds: dict[tuple[str, Phase, str], float] = defaultdict(float)
    launches: dict[tuple[str, Phase, str], int] = defaultdict(int)
    for span, spans in zip(trace.work, around, strict=True):
        module, phase = _owner(spans, module_of_node)
        key = _NUMBERS.sub("*", module), phase, span.name
        seconds[key] += span.seconds
        launches[key] += 1
    ordered = sorted(seconds, key=lambda key: -seconds[key])
    return [Cost(*key, seconds[key], launches[key]) for key in ordered]


_ModuleOfNode = dict[tuple[int, int], str]


def _owner(spans: Sequence[Span], module_of_node: _ModuleOfNode) -> tuple[str, Phase]:
    if not spans:
        return "(none)", "forward"
    innermost, backward = spans[-1], any(span.name.startswith(_NODE) for span in spans)
    if innermost.name.startswith(_MODULE):
        name = innermost.name.removeprefix(_MODULE)
        return name, "recomputation" if backward else "forward"
    key = innermost.forward_thread, -1 if innermost.sequence is None else innermost.sequence
    return module_of_node.get(key, "(autograd)"), "backward"


def _forward_modules(trace: Trace, ranges: Sequence[Span]) -> _ModuleOfNode:
    """The module of each (forward thread, sequence number)."""
    operations = [
        span for span in trace.operations if span.sequence is not None and not span.forward_thread
    ]
    operations.sort(key=lambda span: span.start)
    # Nodes know the thread of their forward by torch's own number, which rises as threads come up.
    threads = list(dict.fromkeys(span.thread for span in operations))
    numbers = sorted({span.forward_thread for span in trace.operations if span.forward_thread})
    number_of = dict(zip(threads, numbers))
    around = enclosing(ranges, [(span.thread, span.start) for span in operations])
    module_of_node: _ModuleOfNode = {}
    for span, spans in zip(operations, around, strict=True):
        # The last one wins: operations before it saw the same number, but left no node.
        if spans and span.sequence is not None:
            name = spans[-1].name.removeprefix(_MODULE)
            module_of_node[number_of.get(span.thread, 0), span.sequence] = name
    return module_of_node
