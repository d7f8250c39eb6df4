"""Inputs of checkpointed blocks wait on the host, from a block's forward to its backward.

A block's inputs leave while it computes, and come back while backward is in the block after it. So
the GPU holds those of two blocks at most, whatever the depth. Copies go on beside the computation,
on a stream of their own; the host's memory is page-locked and allocated once, so a CUDA graph may
capture them. They are copies: no result changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from scalefold.errors import InputError


class OffloadedInputs:
    """Runs blocks in their order; backward meets them in the reverse order.

    Parameters
    ----------
    checkpoint : callable
        Of a function and its arguments; saves nothing but these.
    """

    def __init__(self, checkpoint: Callable[..., Any]) -> None:
        self._checkpoint, self._copies = checkpoint, _Copies()
        self._inputs: dict[int, list[_Input]] = {}
        self._memory: dict[tuple[int, ...], Tensor] = {}

    def run(
        self, number: int, block: Callable[..., Any], m: Tensor, z: Tensor, *shared: Tensor
    ) -> Any:
        """Run the block of this number; masks and the like, which blocks share, stay on the GPU."""
        if not (m.requires_grad or z.requires_grad):  # nothing to offload, or frozen
            return self._checkpoint(block, m, z, *shared)
        before = self._inputs.get(number - 1, [])
        for one in before:
            one.release()
        inputs = self._inputs[number] = []

        def pack(tensor: Tensor) -> _Input:
            memory = self._host_memory(number, len(inputs), tensor)
            inputs.append(_Input(tensor, memory, self._copies))
            return inputs[-1]

        def unpack(wanted: _Input) -> Tensor:
            for one in (wanted, *before):
                one.fetch()
            return wanted.take()

        with saved_tensors_hooks(pack, unpack):
            return self._checkpoint(lambda m, z: block(m, z, *shared), m, z)

    def _host_memory(self, number: int, place: int, like: Tensor) -> Tensor:
        # A captured graph knows its address, so it is kept also when other shapes come.
        key = (number, place, *like.shape)
        if key not in self._memory:
            try:
                memory = torch.empty_like(like, device="cpu", pin_memory=like.is_cuda)
            except RuntimeError as error:
                raise InputError(
                    f"the host lacks page-locked memory for the inputs of block {number} "
                    f"({error}): set training.recomputation to full, or give the training more "
                    "memory"
                ) from error
            self._memory[key] = memory
        return self._memory[key]


class _Input:
    """An input of a block: on the GPU, on the host, or on its way between them."""

    def __init__(self, tensor: Tensor, memory: Tensor, copies: _Copies) -> None:
        self._tensor: Tensor | None = tensor
        self._device, self._memory, self._copies = tensor.device, memory, copies
        self._wait = copies.start(memory, tensor)

    def release(self) -> None:
        """Free the GPU's memory, once the host has the tensor."""
        self._wait()
        self._tensor = None

    def fetch(self) -> None:
        """Begin to copy the tensor back, if it is not on the GPU."""
        if self._tensor is None:
            self._tensor = torch.empty_like(self._memory, device=self._device)
            self._wait = self._copies.start(self._tensor, self._memory)

    def take(self) -> Tensor:
        """The tensor, which is not kept here."""
        self._wait()
        tensor, self._tensor = self._tensor, None
        assert tensor is not None
        return tensor


class _Copies:
    """Ordered copies on a stream of their own; on a CPU, immediate copies."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def start(self, to: Tensor, source: Tensor) -> Callable[[], None]:
        """Begin a copy after what was launched so far; the result has later work wait for it."""
        gpu = to.device if to.is_cuda else source.device
        if gpu.type == "cpu":  # also an empty tensor that some versions of torch save besides
            to.copy_(source)
            return lambda: None
        if self._stream is None:
            self._stream = torch.cuda.Stream(gpu)
        self._stream.wait_stream(torch.cuda.current_stream(gpu))
        with torch.cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        return done.wait
