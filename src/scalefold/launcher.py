"""Which process this is, of those that a launcher such as torchrun has started, and how many fit.

The only place that reads the launcher's environment variables (``RANK``, ``WORLD_SIZE``,
``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``). Without torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from scalefold.errors import InputError

_VARIABLES: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Place:
    """Which of the launched processes this one is.

    Attributes
    ----------
    rank, world_size : int
        Among all processes.
    local_rank, local_size : int
        Among those of this node.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1


def training_processes(processes: int, on_node: int, evaluators: int) -> tuple[int, int]:
    """How many of a run's processes train, in all and on its first node; the last ones evaluate.

    Raises
    ------
    InputError
        If none is left to train.
    """
    training = processes - evaluators
    if training < 1:
        raise InputError(
            f"evaluation.ranks is {evaluators}, but there are {processes} processes, and one must "
            "train: start more with torchrun, or set evaluation.ranks to 0"
        )
    return training, min(on_node, training)


def check_degree(degree: int, processes: int, on_node: int) -> None:
    """Check ``parallel.dap`` against the processes of a run, and those of one of its nodes.

    Raises
    ------
    InputError
        If one of the numbers is not a multiple of the degree.
    """
    # The node's number comes first: if it is a multiple, that of equal nodes is one as well.
    for number, where in ((on_node, " on each node"), (processes, "")):
        if number % degree:
            where = where if on_node != processes else ""
            found = "there is 1 process" if number == 1 else f"there are {number} processes{where}"
            raise InputError(
                f"parallel.dap is {degree}, but {found}: start a multiple of {degree} with "
                f"torchrun, or set parallel.dap to a divisor of {number}"
            )


def choose_degree(
    setting: int | Literal["auto"], processes: int, on_node: int, batch_size: int
) -> int:
    """Decide on ``parallel.dap``, and check it.

    ``auto`` is the least that leaves no process without a sample: processes with samples of their
    own are always faster than those that share one (`scalefold plan`). It follows from the numbers
    alone, so a training run that goes on with as many processes has the same.

    Parameters
    ----------
    setting : int or "auto"
    processes, on_node : int
        Of the run, and of each of its nodes.
    batch_size : int
        ``training.global_batch_size``.

    Raises
    ------
    InputError
        See `check_degree`; or the samples cannot be divided so.
    """
    if setting != "auto":
        check_degree(setting, processes, on_node)
        return setting
    for degree in range(1, on_node + 1):
        if not on_node % degree and not processes % degree and not batch_size * degree % processes:
            return degree
    raise InputError(
        f"parallel.dap is auto, but {processes} processes, {on_node} on each node, cannot divide "
        f"training.global_batch_size {batch_size} among them: start a number that divides it, or "
        "that is a multiple of it"
    )


def check_layout(
    setting: int | Literal["auto"], processes: int, on_node: int, batch_size: int
) -> None:
    """Check before a training run starts that its processes can divide its samples among them.

    Parameters as `choose_degree`.

    Raises
    ------
    InputError
        If they cannot.
    """
    groups = processes // choose_degree(setting, processes, on_node, batch_size)
    if batch_size % groups:
        raise InputError(
            f"training.global_batch_size {batch_size} cannot be divided among {groups} groups, of "
            f"{processes} processes with parallel.dap {setting}: make it a multiple of {groups}, "
            "or start another number of processes"
        )


def find_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Read where the launcher has put this process; None if there was no launcher.

    Raises
    ------
    InputError
        If it set only some of its variables, or to no numbers.
    """
    missing = [name for name in _VARIABLES if name not in environment]
    if "RANK" in missing and "WORLD_SIZE" in missing:
        return None
    if missing:
        raise InputError(
            f"the environment has some variables of a launcher but not {', '.join(missing)}: start "
            "several processes with torchrun, or unset RANK and WORLD_SIZE for one"
        )
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = [environment.get(name, "1") for name in names]
    try:
        return Place(*map(int, values))
    except ValueError:
        found = ", ".join(f"{name}={value}" for name, value in zip(names, values))
        raise InputError(f"the launcher's variables are no numbers: {found}") from None
