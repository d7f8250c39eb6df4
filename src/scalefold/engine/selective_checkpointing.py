"""Selective activation checkpointing: backward computes the projections again.

Projections are large and cheap: each comes from a representation through one LayerNorm and one
matrix product. They are q, k, v and gate of an attention, and a, b and gate of a triangle
multiplication: more than half of a block's memory for a few per cent of its time. The results of
attention and of the triangle product are expensive, so they are kept.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from scalefold.ops import TORCH, Ops

PROJECTIONS: Final = ("normed_projection", "triangle_projection", "outer_product_operands")
"""Operations whose results `SelectiveCheckpointing` drops."""

rerun_in_backward = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Calls a function, of which only the arguments are kept for backward."""


class SelectiveCheckpointing:
    """Drops projections as soon as forward is done with them, and makes them again in backward.

    Every tensor that autograd saves inside a block passes through `_pack`. One that lies in the
    memory of a projection's result is replaced by the projection's arguments and the place in it.
    The first one that backward asks for computes the projection again, and the last one releases
    it.

    Examples
    --------
    >>> selective = SelectiveCheckpointing()
    >>> model = AlphaFold(config, Assembly(ops=selective.operations(ops)))
    >>> selective.watch(model.evoformer.blocks)
    """

    def __init__(self) -> None:
        self._results: dict[StorageWeakRef, tuple[_Projection, int]] = {}
        self._undecided: list[_Saved] | None = None

    def operations(self, ops: Ops) -> Ops:
        """The operations that the model is to be built with.

        Those without a kernel keep their arguments alone, as the kernels do by themselves.
        """
        plain = {
            field.name: functools.partial(rerun_in_backward, getattr(ops, field.name))
            for field in dataclasses.fields(ops)
            if getattr(ops, field.name) is getattr(TORCH, field.name)
        }
        ops = dataclasses.replace(ops, **plain)
        projections = {
            name: functools.partial(self._project, getattr(ops, name)) for name in PROJECTIONS
        }
        return dataclasses.replace(ops, **projections)

    def watch(self, blocks: Iterable[nn.Module]) -> None:
        """Make these blocks of the model drop projections."""
        for block in blocks:
            block.forward = functools.partial(self._run, block.forward)

    def _run(self, forward: Callable[..., Any], *arguments: Any) -> Any:
        with saved_tensors_hooks(self._pack, _Saved.get):
            results = forward(*arguments)
        self._results.clear()
        return results

    def _project(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        if not torch.is_grad_enabled():
            return operation(*arguments)
        # The operation may save its own result, which is known only afterwards.
        self._undecided = []
        results = operation(*arguments)
        projection = _Projection(operation, arguments)
        given = {_memory(t) for t in _tensors(arguments)}
        for number, result in enumerate(results):
            if _memory(result) not in given:
                self._results.setdefault(_memory(result), (projection, number))
        for saved in self._undecided:
            saved.decide(self._results)
        self._undecided = None
        return results

    def _pack(self, tensor: Tensor) -> _Saved:
        saved = _Saved(tensor)
        if self._undecided is None:
            saved.decide(self._results)
        else:
            self._undecided.append(saved)
        return saved


class _Projection:
    """A projection that can be computed again, and how many saved tensors lie in its results."""

    def __init__(self, operation: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._operation, self._arguments = operation, _detached(arguments)
        self.num_saved = self._num_wanted = 0
        self._results: tuple[Tensor, ...] = ()

    def take(self, number: int) -> Tensor:
        """One of the results, for one of the saved tensors."""
        if not self._results:
            with torch.no_grad():
                self._results = tuple(self._operation(*self._arguments))
            self._num_wanted = self.num_saved
        result = self._results[number]
        self._num_wanted -= 1
        if not self._num_wanted:
            self._results = ()
        return result


class _Saved:
    """What autograd saved: a tensor, or a place in a projection's result."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = tensor
        self._make: Callable[[], Tensor] | None = None

    def decide(self, results: dict[StorageWeakRef, tuple[_Projection, int]]) -> None:
        """Release the tensor if it lies in one of the results."""
        tensor = self._tensor
        assert tensor is not None
        source = results.get(_memory(tensor))
        if source is not None:
            projection, number = source
            projection.num_saved += 1
            place = tensor.size(), tensor.stride(), tensor.storage_offset()
            self._make = lambda: projection.take(number).as_strided(*place)
            self._tensor = None

    def get(self) -> Tensor:
        """The tensor, computed again if necessary."""
        if self._make is not None:
            return self._make()
        assert self._tensor is not None
        return self._tensor


def _memory(tensor: Tensor) -> StorageWeakRef:
    """Identity of the memory that a tensor lies in; valid also when the memory has been freed."""
    return StorageWeakRef(tensor.untyped_storage())


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _detached(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, list | tuple):
        return type(values)(_detached(value) for value in values)
    return values
