"""Activation checkpointing: backward computes some values again, which saves memory and takes time.

- ``none`` keeps what autograd keeps.
- ``selective`` drops what is large and cheap: `SelectiveCheckpointing`.
- ``full`` keeps only the inputs of each block, and backward runs the whole block again.
- ``offload`` does the same, and those of the trunk's blocks wait on the host: `OffloadedInputs`.

None changes a result or a state-dict key: dropout masks depend on the key and the layer alone,
and the same kernels give the same bits again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Literal

from torch import nn

from scalefold.config.model import ModelConfig
from scalefold.engine.offload import OffloadedInputs
from scalefold.engine.selective_checkpointing import SelectiveCheckpointing, rerun_in_backward
from scalefold.model.alphafold import AlphaFold
from scalefold.model.assembly import Assembly

ActivationCheckpointing = Literal["none", "selective", "full", "offload"]


def training_model(
    config: ModelConfig, assembly: Assembly, checkpointing: ActivationCheckpointing
) -> AlphaFold:
    """Build a model in training mode: the one that is trained, and the one that is measured."""
    if checkpointing == "selective":
        selective = SelectiveCheckpointing()
        ops = selective.operations(assembly.ops)
        model = AlphaFold(config, dataclasses.replace(assembly, ops=ops)).train()
        selective.watch(trunk_blocks(model))
        return model
    model = AlphaFold(config, assembly).train()
    if checkpointing != "none":
        checkpoint_blocks(model, on_host=checkpointing == "offload")
    return model


def checkpoint_blocks(model: AlphaFold, *, on_host: bool = False) -> None:
    """Keep only the inputs of each block for backward; those of the trunk's blocks on the host."""
    # A block that ended early would leave the last exchange between ranks without an end.
    run = functools.partial(rerun_in_backward, early_stop=model.axis.size == 1)
    offloaded = OffloadedInputs(run)
    for block in _template_blocks(model):
        block.forward = functools.partial(run, block.forward)
    for number, block in enumerate(trunk_blocks(model)):
        how = functools.partial(offloaded.run, number) if on_host else run
        block.forward = functools.partial(how, block.forward)


def trunk_blocks(model: AlphaFold) -> Iterator[nn.Module]:
    """Blocks of the extra MSA stack and of the Evoformer, in the order of their computation."""
    yield from model.extra_msa_stack.blocks
    yield from model.evoformer.blocks


def _template_blocks(model: AlphaFold) -> Iterator[nn.Module]:
    if model.template_embedder is not None:
        yield from model.template_embedder.template_pair_stack.blocks
