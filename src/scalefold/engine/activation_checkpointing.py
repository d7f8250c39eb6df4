"""Activation checkpointing: backward computes some values again, which saves memory and takes time.

``full`` keeps only the inputs of each block, and backward runs the whole block again. ``offload``
does the same, and those of the trunk's blocks wait on the host (`OffloadedInputs`). ``selective``
drops the projections, which are large and cheap: each comes from a representation through one
LayerNorm and one matrix product. They are q, k, v and gate of an attention, and a, b and gate of a
triangle multiplication: more than half of a block's memory for a few per cent of its time. The
results of attention and of the triangle product are expensive, so they are kept.

None changes a result or a state-dict key: dropout masks depend on the key and the layer alone,
and the same kernels give the same bits again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from scalefold.config.model import ModelConfig
from scalefold.engine.offload import OffloadedInputs
from scalefold.model.alphafold import AlphaFold
from scalefold.model.assembly import Assembly
from scalefold.ops import TORCH, Ops

PROJECTIONS: Final = ("normed_projection", "triangle_projection", "outer_product_operands")
"""Operations whose results `SelectiveCheckpointing` drops."""

ActivationCheckpointing = Literal["none", "selective", "full", "offload"]

_checkpoint = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


def training_model(
    config: ModelConfig, assembly: Assembly, checkpointing: ActivationCheckpointing
) -> AlphaFold:
    """Build a model in training mode: the one that is trained, and the one that is measured."""
    if checkpointing == "selective":
        selective = SelectiveCheckpointing()
        ops = selective.operations(assembly.ops)
        model = AlphaFold(config, dataclasses.replace(assembly, ops=ops)).train()
        selective.watch(model)
        return model
    model = AlphaFold(config, assembly).train()
    if checkpointing != "none":
        checkpoint_blocks(model, on_host=checkpointing == "offload")
    return model


def checkpoint_blocks(model: AlphaFold, *, on_host: bool = False) -> None:
    """Keep only the inputs of each block for backward; those of the trunk's blocks on the host."""
    # A block that ended early would leave the last exchange between ranks without an end.
    run = functools.partial(_checkpoint, early_stop=model.axis.size == 1)
    offloaded = OffloadedInputs(run)
    for block in _template_blocks(model):
        block.forward = functools.partial(run, block.forward)
    for number, block in enumerate(_blocks(model)):
        how = functools.partial(offloaded.run, number) if on_host else run
        block.forward = functools.partial(how, block.forward)


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
    >>> selective.watch(model)
    """

    def __init__(self) -> None:
        self._results: dict[StorageWeakRef, tuple[_Projection, int]] = {}
        self._undecided: list[_Saved] | None = None

    def operations(self, ops: Ops) -> Ops:
        """The operations that the model is to be built with.

        Those without a kernel keep their arguments alone, as the kernels do by themselves.
        """
        plain = {
            field.name: functools.partial(_checkpoint, getattr(ops, field.name))
            for field in dataclasses.fields(ops)
            if getattr(ops, field.name) is getattr(TORCH, field.name)
        }
        ops = dataclasses.replace(ops, **plain)
        projections = {
            name: functools.partial(self._project, getattr(ops, name)) for name in PROJECTIONS
        }
        return dataclasses.replace(ops, **projections)

    def watch(self, model: AlphaFold) -> None:
        """Make the model's blocks drop projections."""
        for block in _blocks(model):
            block.forward = functools.partial(self._run, block.forward)

    def _run(self, forward: Callable[..., Any], *arguments: Any) -> Any:
        with saved_tensors_hooks(self._pack, _unpack):
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


def _unpack(saved: _Saved) -> Tensor:
    return saved.get()


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


def _blocks(model: AlphaFold) -> Iterator[nn.Module]:
    yield from model.extra_msa_stack.blocks
    yield from model.evoformer.blocks


def _template_blocks(model: AlphaFold) -> Iterator[nn.Module]:
    if model.template_embedder is not None:
        yield from model.template_embedder.template_pair_stack.blocks
