"""CUDA graphs of a sample's passes: thousands of kernel launches become one.

The recycling pass and the last pass, forward and backward, are captured once for each set of
feature shapes and replayed after that, on static buffers: features are copied in before each
replay, recycled representations stay where they are, gradients are already views of flat buffers.
Random masks depend on a key among the features, so a replay draws anew. What follows (exchange
with other ranks, clipping, update) is a handful of launches over flat buffers and stays outside.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch

from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.train.sample import SampleGradient, SampleNumbers

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Shapes = tuple[tuple[str, torch.Size], ...]


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


class GraphedSampleGradient:
    """A `SampleGradient` that is captured and replayed; the same numbers, to the last bit.

    Parameters
    ----------
    gradient : SampleGradient
        On a CUDA device; shape for shape it must launch the same kernels each time.
    """

    def __init__(self, gradient: SampleGradient) -> None:
        self._gradient = gradient
        self._captured: dict[_Shapes, _CapturedPasses] = {}
        # One memory pool: graphs are replayed one after the other, so they may share scratch.
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, passes: list[Features]) -> SampleNumbers:
        """Make all passes of a sample; a new set of shapes is captured first, and logged."""
        shapes = tuple((name, tensor.shape) for name, tensor in passes[-1].items())
        if shapes not in self._captured:
            started = time.perf_counter()
            self._captured[shapes] = _CapturedPasses(self._gradient, passes[-1], self._pool)
            logger.info(
                "captured CUDA graphs for %s in %.1f s",
                _sizes(passes[-1]),
                time.perf_counter() - started,
            )
        return self._captured[shapes](passes)


class _CapturedPasses:
    """The two graphs of one set of shapes, and the buffers that they read and write."""

    def __init__(self, gradient: SampleGradient, features: Features, pool: Any) -> None:
        self._features = {name: tensor.clone() for name, tensor in features.items()}
        self._previous = gradient.before_first(features)

        def recycle() -> None:
            new = gradient.recycle(self._features, self._previous)
            torch._foreach_copy_(list(self._previous), list(new))

        def differentiate() -> SampleNumbers:
            return gradient.differentiate(self._features, self._previous)

        self._recycle, _ = capture(recycle, pool)
        self._differentiate, self._numbers = capture(differentiate, pool)

    def __call__(self, passes: list[Features]) -> SampleNumbers:
        torch._foreach_zero_(list(self._previous))
        for features in passes[:-1]:
            self._load(features)
            self._recycle.replay()
        self._load(passes[-1])
        self._differentiate.replay()
        # The next replay overwrites the graph's own.
        return SampleNumbers(self._numbers.names, self._numbers.values.clone())

    def _load(self, features: Features) -> None:
        # One launch for all tensors of a type; mixed, each would have its own.
        for dtype in {tensor.dtype for tensor in self._features.values()}:
            names = [name for name, tensor in self._features.items() if tensor.dtype == dtype]
            torch._foreach_copy_(
                [self._features[name] for name in names], [features[name] for name in names]
            )


def capture(work: Callable[[], _Result], pool: Any) -> tuple[torch.cuda.CUDAGraph, _Result]:
    """Capture some work as a CUDA graph; what it returns is overwritten by each replay.

    Parameters
    ----------
    work : callable
        Is run once before, since libraries and kernels initialise what capture forbids.
    pool : handle
        Memory pool, of graphs that are replayed one after the other.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    # What other threads do meanwhile, such as making features, is no mistake.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = work()
    return graph, result


def _sizes(features: Features) -> str:
    batch, num_res = features["aatype"].shape
    rows, extra = features["msa_feat"].shape[1], features["extra_msa"].shape[1]
    return f"{batch} x {num_res} residues, {rows} MSA and {extra} extra rows"
