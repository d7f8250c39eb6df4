"""CUDA graphs of a sample's passes: thousands of kernel launches become one.

The templates' embedding, a recycling pass and the last pass, forward and backward, are captured
once for each set of feature shapes and replayed after that, on static buffers: features are copied
in before each replay, recycled representations stay where they are, gradients are already views of
flat buffers. The last pass's graph goes on from what the templates' graph keeps for backward.
Random masks depend on a key among the features, so each replay draws new ones. The rest of a step
(exchange with other ranks, clipping, update) is a few launches over flat buffers and stays outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

import torch

from scalefold.engine.compile_ahead import compiling_processes, launches_only_compile
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.model.passes import Result, SamplePasses, Settled, never
from scalefold.ops.kernels import why_not

_Returned = TypeVar("_Returned")


def use_graphs(setting: Literal["auto"] | bool, device: torch.device) -> bool:
    """Decide on ``training.cuda_graphs``; auto means on where there is a CUDA device.

    Raises
    ------
    InputError
        If graphs are asked for on another device.
    """
    if setting is True and device.type != "cuda":
        raise InputError(
            f"training.cuda_graphs is on, but the device is {device.type!r}: set it to auto or "
            "off, or train on an NVIDIA GPU"
        )
    return setting is not False and device.type == "cuda"


class CapturedPasses(Generic[Result]):
    """The graphs of one set of shapes, and the buffers that they read and write.

    Parameters
    ----------
    features : dict of str to Tensor
        Of any pass of these shapes.
    pool : handle
        Memory pool, of graphs that are replayed one after the other.
    """

    def __init__(self, passes: SamplePasses[Result], features: Features, pool: Any) -> None:
        self._features = {name: tensor.clone() for name, tensor in features.items()}
        self._previous = passes.before_first(features)
        _warm_up(lambda: passes([self._features, self._features]))
        self._embed, templates = None, None
        if passes.reads_templates:  # or its graph would be empty
            self._embed, templates = _capture(lambda: passes.embed_templates(self._features), pool)

        def recycle() -> None:
            new = passes.recycle(self._features, self._previous, templates)
            # Private, since torch has no public copy of many tensors in one launch.
            torch._foreach_copy_(list(self._previous), list(new))

        self._recycle, _ = _capture(recycle, pool)
        self._last, self._result = _capture(
            lambda: passes.last(self._features, self._previous, templates), pool
        )

    def __call__(self, passes: Sequence[Features], settled: Settled = never) -> Result:
        """What the passes return, valid until the next call."""
        self._load(passes[-1])
        if self._embed is not None:
            self._embed.replay()
        torch._foreach_zero_(list(self._previous))
        for features in passes[:-1]:
            self._load(features)
            self._recycle.replay()
            if settled(self._previous.positions):
                break
        if len(passes) > 1:
            self._load(passes[-1])
        self._last.replay()
        return self._result

    def _load(self, features: Features) -> None:
        # One launch for all tensors of a type; mixed, each would have its own.
        for dtype in {tensor.dtype for tensor in self._features.values()}:
            names = [name for name, tensor in self._features.items() if tensor.dtype == dtype]
            torch._foreach_copy_(
                [self._features[name] for name in names], [features[name] for name in names]
            )


def _warm_up(work: Callable[[], object]) -> None:
    """Do the work before its capture, which forbids what libraries and kernels do at first use.

    Kernels that were never compiled are compiled in parallel, and the work is then done again. All
    ranks do it equally often, since it may exchange.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        if why_not(stream.device) is not None:
            work()
        else:
            with launches_only_compile(compiling_processes()):
                work()
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _capture(work: Callable[[], _Returned], pool: Any) -> tuple[torch.cuda.CUDAGraph, _Returned]:
    """Capture some work as a CUDA graph; what it returns is overwritten by each replay."""
    graph = torch.cuda.CUDAGraph()
    try:
        # Other threads may use the GPU meanwhile, for features for example.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            returned = work()
    except RuntimeError as error:
        # Copies of offloaded inputs are still under way, which the end of a capture complains of.
        if isinstance(error.__context__, torch.OutOfMemoryError):
            raise error.__context__ from None
        raise
    return graph, returned
