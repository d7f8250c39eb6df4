"""How much memory a training pass needs, found without a GPU and without computing anything.

The pass runs on fake tensors, which have shapes and lifetimes but no values. Live memory is counted
as a GPU's allocator would see it.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scalefold.config.load import make_config
from scalefold.config.schema import Config
from scalefold.engine.activation_checkpointing import ActivationCheckpointing, training_model
from scalefold.engine.precision import narrow_model
from scalefold.errors import InputError
from scalefold.features.contract import ALL_FEATURES, Features
from scalefold.features.padding import padded_sizes
from scalefold.loss.total import total_loss
from scalefold.model.alphafold import AlphaFold
from scalefold.model.assembly import Assembly
from scalefold.model.contract import Previous
from scalefold.ops import Ops
from scalefold.parallel import Axis, IdentityAxis, Ranks
from scalefold.parallel.one_share import OneShareAxis

logger = logging.getLogger(__name__)

MODES: Final[tuple[ActivationCheckpointing, ...]] = ("none", "selective", "full", "offload")
_BYTES_A_PARAMETER: Final = 4 * 3 + 2 * 2
"""Master weight, gradient, its sum in float32; working copy, gradient in bfloat16."""
_BYTES_DIVIDED: Final = 4 * 3
"""Two moments, average: what processes may divide."""
_RESERVE: Final = 0.15
"""Part of the need: scratch space of kernels, gaps between tensors."""
_BESIDES: Final = 2**30
"""Features of all passes and of the next sample, work space of libraries: about the same always."""


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


def choose_checkpointing(
    config: Config, ops: Ops, free: int | None, degree: int = 1, owners: int = 1
) -> ActivationCheckpointing:
    """Decide on ``training.recomputation``; auto is the least that fits into the free memory.

    Parameters
    ----------
    config : Config
    ops : Ops
    free : int or None
        See `least_free_bytes`. The memory of a CPU is not known: there, auto is none.
    degree, owners : int
        See `peak_bytes`.
    """
    setting = config.training.recomputation
    if setting != "auto":
        return setting
    if free is None:
        return "none"
    needs = {}
    for mode in MODES:
        needs[mode] = with_reserve(peak_bytes(config, ops, mode, degree, owners))
        if needs[mode] <= free:
            break
    needed = ", ".join(f"{name} {_gib(need)}" for name, need in needs.items())
    logger.info(
        "training.recomputation: %s (memory needed: %s; free: %s)", mode, needed, _gib(free)
    )
    return mode


@contextlib.contextmanager
def exhaustion_explained(checkpointing: ActivationCheckpointing) -> Iterator[None]:
    """Around steps: explain how to fix a GPU's lack of memory.

    Raises
    ------
    InputError
        In the place of torch's error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        facts, _, _ = str(error).partition(" If reserved")  # torch's advice follows
        raise InputError(
            f"a training step does not fit into the GPU's memory: {facts} training.recomputation "
            f"is {checkpointing} ({', '.join(MODES)}: each needs less than the one before): set "
            "another, or take a larger GPU or one that nothing else uses, and go on with --resume; "
            "or start over with a smaller features.crop_size, max_msa_clusters or max_extra_msa"
        ) from error


def least_free_bytes(device: torch.device, ranks: Ranks) -> int | None:
    """Free memory of the GPU that has the least, of ranks that must decide alike; None on CPUs."""
    free = free_bytes(device) if device.type == "cuda" else None
    return min((other for other in ranks.gather(free) if other is not None), default=None)


def free_bytes(device: torch.device) -> int:
    """Free memory of a GPU, for this process."""
    number = _number(device)
    free, total = torch.cuda.mem_get_info(number)
    limit = int(total * torch.cuda.get_per_process_memory_fraction(number))
    allocated = torch.cuda.memory_allocated(number)
    unused = torch.cuda.memory_reserved(number) - allocated
    return min(free + unused, limit - allocated)


def limit_memory(gib: float, device: torch.device) -> None:
    """Let torch allocate no more than this on a GPU: a setting of the process.

    Raises
    ------
    InputError
        If the device has no memory of its own, or less.
    """
    if device.type != "cuda":
        raise InputError("--memory-gib limits a GPU's memory, but the device is the CPU")
    number = _number(device)
    _, total = torch.cuda.mem_get_info(number)
    if gib * 2**30 > total:
        raise InputError(f"--memory-gib {gib}: the GPU has {_gib(total)}")
    torch.cuda.set_per_process_memory_fraction(gib * 2**30 / total, number)


def _number(device: torch.device) -> int:
    """Number of a GPU; the current one where the device does not say."""
    return torch.cuda.current_device() if device.index is None else device.index


def with_reserve(peak: int) -> int:
    """Memory that must be free for a process that needs ``peak`` bytes at its peak."""
    return int(peak * (1 + _RESERVE)) + _BESIDES


def peak_bytes(
    config: Config, ops: Ops, checkpointing: ActivationCheckpointing, degree: int, owners: int
) -> int:
    """Memory of a training process: parameters, their optimiser, and its share of a sample's pass.

    ``degree`` is the number of ranks that share the sample, ``owners`` that of those that divide
    the optimiser's state.
    """
    with FakeTensorMode():
        parameters = sum(p.numel() for p in AlphaFold(config.model).parameters())
    state = parameters * (_BYTES_A_PARAMETER + _BYTES_DIVIDED // owners)
    return pass_memory(config, ops, checkpointing, degree).peak + state


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
        name: torch.empty(
            [sizes[dim] if isinstance(dim, str) else dim for dim in spec.dims], dtype=spec.dtype
        )
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
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if _is(t)}
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if _is(result):
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


def _is(value: object) -> bool:
    return isinstance(value, Tensor)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
