"""Does a training step fit into a GPU's memory? Which activation checkpointing makes it fit."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

import torch

from scalefold.config.schema import Config
from scalefold.engine.activation_checkpointing import ActivationCheckpointing
from scalefold.engine.pass_memory import pass_memory
from scalefold.errors import InputError
from scalefold.model.alphafold import AlphaFold
from scalefold.ops import Ops
from scalefold.parallel import Ranks

logger = logging.getLogger(__name__)

MODES: Final[tuple[ActivationCheckpointing, ...]] = ("none", "selective", "full", "offload")
_BYTES_A_PARAMETER: Final = 4 * 3 + 2 * 2
"""Master weight, gradient, its sum in float32; working copy, gradient in bfloat16."""
_BYTES_DIVIDED: Final = 4 * 3
"""Two moments, average: what processes may divide, and what waits on the host with offload."""
_RESERVE: Final = 0.15
"""Part of the need: scratch space of kernels, gaps between tensors."""
_BESIDES: Final = 2**30
"""Features of all passes and of the next sample, work space of libraries: about the same always."""


def choose_checkpointing(
    config: Config, ops: Ops, free: int | None, degree: int = 1, owners: int = 1
) -> ActivationCheckpointing:
    """Decide on ``training.recomputation``; auto is the least that fits into the free memory.

    Parameters
    ----------
    free : int or None
        See `least_free_bytes`. The memory of a CPU is not known: there, auto is none.
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
    known = [other for other in ranks.all_gather_object(free) if other is not None]
    return min(known, default=None)


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
    passing = pass_memory(config, ops, checkpointing, degree).peak
    return passing + state_bytes(config, checkpointing, owners)


def state_bytes(config: Config, checkpointing: ActivationCheckpointing, owners: int) -> int:
    """Memory of the parameters and their optimiser, see `peak_bytes`."""
    divided = 0 if checkpointing == "offload" else _BYTES_DIVIDED // owners
    return num_parameters(config) * (_BYTES_A_PARAMETER + divided)


def num_parameters(config: Config) -> int:
    """Return the number of the model's parameters."""
    with torch.device("meta"):
        model = AlphaFold(config.model)
    return sum(parameter.numel() for parameter in model.parameters())


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
