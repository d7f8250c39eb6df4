"""Memory of a training pass, counted without a GPU and without computing anything.

The pass runs on fake tensors, which have shapes and lifetimes but no values. Live memory is counted
as a GPU's allocator would see it.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scalefold.config.load import make_config
from scalefold.config.schema import Config
from scalefold.engine.activation_checkpointing import ActivationCheckpointing, training_model
from scalefold.engine.precision import narrow_model
from scalefold.features.contract import ALL_FEATURES, Features
from scalefold.features.padding import padded_sizes
from scalefold.loss.total import total_loss
from scalefold.model.alphafold import AlphaFold
from scalefold.model.assembly import Assembly
from scalefold.model.contract import Previous
from scalefold.ops import Ops
from scalefold.parallel import Axis, IdentityAxis
from scalefold.parallel.one_share import OneShareAxis


@dataclass(frozen=True)
class PassMemory:
    """Bytes of a training pass of one sample, besides parameters and features.

    Attributes
    ----------
    kept : int
        What forward leaves for backward.
    more : int
        The most that backward needs on top of that.
    """

    kept: int
    more: int

    @property
    def peak(self) -> int:
        """The most memory that is alive at a time."""
        return self.kept + self.more


def pass_memory(
    config: Config, ops: Ops, checkpointing: ActivationCheckpointing, degree: int = 1
) -> PassMemory:
    """Memory of a training pass, on one of the ``degree`` ranks that share it.

    Every block of the Evoformer keeps the same amount, so two are counted and the rest follows.
    `OffloadedInputs` leaves no more of all blocks on the GPU than ``full`` does of two.
    """
    offloads = checkpointing == "offload"
    counted, of_block = _count(
        for_counting(config, 2), ops, "full" if offloads else checkpointing, degree
    )
    others = 0 if offloads else config.model.evoformer.num_blocks - 2
    return PassMemory(counted.kept + others * of_block, counted.more)


def empty_features(config: Config, degree: int = 1) -> Features:
    """Features of the configured training shapes, one sample, their values left open.

    They can be divided among ``degree`` ranks.
    """
    shapes = config.features
    sizes = {
        "B": 1,
        "N": shapes.crop_size,
        "S": shapes.max_msa_clusters,
        "E": shapes.max_extra_msa,
        "T": shapes.max_templates,
    }
    template_rows = config.model.template.num_rows(shapes.max_templates)
    sizes = padded_sizes(sizes, degree, template_rows)
    return {
        name: torch.empty(spec.shape(sizes), dtype=spec.dtype)
        for name, spec in ALL_FEATURES.items()
    }


def for_counting(config: Config, blocks: int) -> Config:
    """The configuration with another number of Evoformer blocks, for counting on fake tensors."""
    tree: dict[str, Any] = config.model_dump(mode="json")
    tree["model"]["evoformer"]["num_blocks"] = blocks
    # Violations keep tables of constants from one call to the next, which must not become fake;
    # they have no matrix product, and their memory is small.
    tree["loss"]["violation"] = 0.0
    return make_config(tree, source="counting")


@contextlib.contextmanager
def fake_training(
    config: Config, ops: Ops, checkpointing: ActivationCheckpointing, axis: Axis
) -> Iterator[tuple[AlphaFold, Features, Previous]]:
    """A model, the features of a pass and its recycled input, while all tensors are fake."""
    with FakeTensorMode(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Kernels check whether their weights lie side by side; here they do not need to.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        model = training_model(config.model, Assembly(ops, axis), checkpointing)
        narrow_model(model, config.training.precision)
        features = empty_features(config, axis.size)
        like = model.input_embedder.linear_msa_m.weight
        num_res = features["aatype"].shape[1]
        yield model, features, Previous.zeros(1, num_res, config.model, like)


def _count(
    config: Config, ops: Ops, checkpointing: ActivationCheckpointing, degree: int
) -> tuple[PassMemory, int]:
    """Memory of a pass of this configuration, and what its second block keeps of it."""
    axis = OneShareAxis(degree) if degree > 1 else IdentityAxis()
    with fake_training(config, ops, checkpointing, axis) as (model, features, previous):
        after_block: list[int] = []
        with _Living() as living:
            for block in model.evoformer.blocks:
                block.register_forward_hook(lambda *_: after_block.append(living.bytes))
            outputs, _ = model(features, previous, model.embed_templates(features))
            loss, _ = total_loss(outputs, features, config.loss)
            del outputs
            kept = living.bytes
            living.most = kept
            torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return PassMemory(kept, living.most - kept), after_block[1] - after_block[0]


class _Living(TorchDispatchMode):
    """Counts the bytes of memory that operations have made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.most = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)
        }
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor):
                self._see(result.untyped_storage(), given)
        self.most = max(self.most, self.bytes)
        return results

    def _see(self, memory: torch.UntypedStorage, given: set[int]) -> None:
        key, size = id(memory), memory.nbytes()
        if key in given or key in self._known:
            return
        self.bytes += size

        def gone(_: object) -> None:
            self.bytes -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(memory, gone)
