"""Joining the processes that a launcher such as torchrun has started."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from scalefold.errors import InputError
from scalefold.launcher import Place, choose_degree, training_processes
from scalefold.parallel.agreement import check_same, on_all
from scalefold.parallel.axis import IdentityAxis
from scalefold.parallel.collectives import Collectives
from scalefold.parallel.group_axis import Exchange, GroupAxis
from scalefold.parallel.launcher_store import LauncherStore
from scalefold.parallel.mesh import SINGLE, Mesh
from scalefold.parallel.push import push_between, why_not_push
from scalefold.parallel.ranks import ALONE, MeshRanks, Ranks

logger = logging.getLogger(__name__)

T = TypeVar("T")

START_TIMEOUT: Final = timedelta(minutes=15)
"""After this long without an answer, a rank treats the others as dead; until the configuration says
otherwise."""

_GLOO_SECONDS: Final = 1.0
"""Time for gloo's threads, once a process has failed."""


@dataclass(frozen=True)
class _Meeting(Ranks):
    """Processes that found each other, but cannot exchange tensors yet."""

    store: dist.Store
    rank: int
    size: int

    def all_gather_object(self, value: T) -> list[T]:
        """All ranks' values, once; of those that JSON has."""
        self.store.set(f"said/{self.rank}", json.dumps(value))
        values = [json.loads(self.store.get(f"said/{rank}")) for rank in range(self.size)]
        self.store.set(f"heard/{self.rank}", "")
        if self.rank == 0:  # its end may be the store's
            self.store.wait([f"heard/{rank}" for rank in range(self.size)])
        return values


@contextlib.contextmanager
def joined(
    place: Place | None, choose: Callable[[], torch.device]
) -> Iterator[tuple[Mesh, torch.device]]:
    """Connect to the other processes: NCCL between GPUs, gloo between CPUs.

    A normal end waits for the others. An exception tells them and does not wait: the launcher ends
    them.

    Parameters
    ----------
    choose : callable
        Returns this process's device, a GPU made current; its `InputError` is raised by one of
        those that have it.
    """
    if place is None:
        yield SINGLE, choose()
        return
    store, rank, world_size = next(iter(dist.rendezvous("env://", timeout=START_TIMEOUT)))
    device = on_all(
        _Meeting(dist.PrefixStore("scalefold/meeting", store), rank, world_size), choose
    )
    on_gpu = device.type == "cuda"
    # Else a process that has waited too long for another waits a minute more: for traces to be
    # written, four times as long as that may take.
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000")
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.PrefixStore("scalefold/group", store),
        rank=rank,
        world_size=world_size,
        timeout=START_TIMEOUT,
        device_id=device if on_gpu else None,
    )
    assert dist.group.WORLD is not None
    # From the group that is there: a group that the mesh made would have another timeout.
    devices = DeviceMesh.from_group(dist.group.WORLD, device.type, mesh_dim_names=("data",))
    launcher_store = LauncherStore(dist.PrefixStore("scalefold/ranks", store), rank, world_size)
    world = MeshRanks(devices, launcher_store)
    try:
        yield Mesh(world=world, data=world, dap=ALONE, axis=IdentityAxis()), device
        world.barrier()
    except BaseException as error:
        launcher_store.report_end(error)
        if not on_gpu:
            # A thread of gloo that frees its last tensor when the interpreter has ended would abort
            # the process. To end the group would free them, but it would wait for lost ranks.
            time.sleep(_GLOO_SECONDS)
        raise
    gc.collect()  # NCCL's end would wait for that of each graph that has captured it
    dist.destroy_process_group()


def divided(
    mesh: Mesh,
    setting: int | Literal["auto"],
    place: Place | None,
    batch_size: int,
    exchange: Literal["auto", "push", "collectives"] = "auto",
    evaluators: int = 0,
) -> Mesh:
    """Divide all processes that train among samples, as many to one sample as ``setting`` says.

    Processes of a sample are neighbours on one node. All processes make this call. Those that do
    not train get `SINGLE`.

    Parameters
    ----------
    evaluators : int
        ``evaluation.ranks``: the last processes, which do not train.

    Raises
    ------
    InputError
        If the processes of the run, or of a node, cannot be divided so, or cannot push.
    """
    world, own = mesh.world, place or Place()

    def choose() -> tuple[int, int]:
        check_same(world, "evaluation.ranks", str(evaluators))
        check_same(world, "parallel.dap", str(setting))
        size, on_node = training_processes(own.world_size, own.local_size, evaluators)
        return choose_degree(setting, size, on_node, batch_size), size

    degree, size = on_all(world, choose)
    if setting == "auto" and mesh.first:
        logger.info("parallel.dap: %d of %d processes share a sample", degree, size)
    if not isinstance(world, MeshRanks):
        return mesh
    # Also on processes that do not train: a group is made by all.
    numbers, groups = torch.arange(size), list[DeviceMesh]()
    if evaluators and size > 1:
        groups.append(DeviceMesh(world.device_type, numbers, mesh_dim_names=("data",)))
    if degree > 1:
        shared = numbers.view(-1, degree)
        groups.append(DeviceMesh(world.device_type, shared, mesh_dim_names=("data", "dap")))
    if world.rank >= size or size == 1:
        return SINGLE
    launcher_store = world.store.of_first(size)
    if evaluators:
        world = MeshRanks(groups[0], launcher_store)
        mesh = Mesh(world, world, ALONE, IdentityAxis())
        mesh.set_timeout(START_TIMEOUT.total_seconds())
    if degree == 1:
        return mesh
    data, dap = (MeshRanks(groups[-1][name], launcher_store) for name in ("data", "dap"))
    axis = GroupAxis(choose_exchange(exchange, dap, first=mesh.first))
    divided = Mesh(world, data if data.size > 1 else ALONE, dap, axis)
    divided.set_timeout(START_TIMEOUT.total_seconds())
    return divided


def choose_exchange(
    setting: Literal["auto", "push", "collectives"], dap: MeshRanks, *, first: bool
) -> Exchange:
    """Decide on ``parallel.exchange``. All ranks that share a sample make this call.

    Parameters
    ----------
    first : bool
        Whether this process logs why GPUs do not push.

    Raises
    ------
    InputError
        If they are to push and cannot.
    """
    on_gpu = dap.device_type == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    if setting != "collectives":
        reason = why_not_push(dap, device)
        if reason is None:
            return push_between(dap, device)
        if setting == "push":
            raise InputError(
                "parallel.exchange is push, but GPUs cannot write to each other's memory here: "
                f"{reason}; set it to auto or collectives"
            )
        if first and on_gpu:
            logger.info("DAP exchanges by NCCL: %s", reason)
    return Collectives(dap)
