from __future__ import annotations

from typing import Any

import pytest
import torch

from scalefold.cli.device import torch_device
from scalefold.errors import ElsewhereError, InputError
from scalefold.launcher import Place, check_degree, check_layout, choose_degree, find_place
from scalefold.parallel import ALONE, SINGLE
from scalefold.parallel.agreement import check_same, on_all, on_first
from scalefold.parallel.collectives import Collectives
from scalefold.parallel.launch import choose_exchange, divided, joined
from scalefold.parallel.ranks import MeshRanks, Ranks

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1", "MASTER_PORT": "29500",
}  # fmt: skip


def test_place_of_a_launched_process() -> None:
    assert find_place(TORCHRUN) == Place(rank=5, world_size=8, local_rank=1, local_size=4)
    assert find_place({"PATH": "/bin", "MASTER_ADDR": "left over"}) is None


def test_half_a_launcher_and_wrong_numbers_are_errors() -> None:
    half = {name: value for name, value in TORCHRUN.items() if not name.startswith("MASTER")}
    with pytest.raises(InputError, match="MASTER_ADDR, MASTER_PORT"):
        find_place(half)
    with pytest.raises(InputError, match="RANK=x"):
        find_place(TORCHRUN | {"RANK": "x"})


def test_without_a_launcher_there_is_one_process() -> None:
    with joined(None, lambda: torch.device("cpu")) as (mesh, device):
        assert mesh is SINGLE
        assert device == torch.device("cpu")
        assert mesh.first
        assert (mesh.data.size, mesh.dap.size) == (1, 1)


class CpuRanks(MeshRanks):
    """Ranks of which one is there."""

    device_type = "cpu"

    def __init__(self) -> None:
        pass

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]


def test_cpus_exchange_by_collectives_and_cannot_push() -> None:
    for setting in ("auto", "collectives"):
        assert isinstance(choose_exchange(setting, CpuRanks(), first=True), Collectives)
    with pytest.raises(InputError, match=r"parallel\.exchange.*push.*cpu"):
        choose_exchange("push", CpuRanks(), first=True)


@pytest.mark.parametrize(
    ("degree", "processes", "on_node", "found"),
    [(4, 6, 6, "6 processes"), (4, 8, 2, "2 processes on each node"), (2, 1, 1, "1 process")],
)
def test_processes_that_cannot_share_samples_are_an_error(
    degree: int, processes: int, on_node: int, found: str
) -> None:
    with pytest.raises(InputError, match=rf"parallel\.dap.*{degree}.* {found}"):
        check_degree(degree, processes, on_node)


@pytest.mark.parametrize(
    ("processes", "on_node", "batch_size", "degree"),
    [(1, 1, 8, 1), (8, 8, 8, 1), (8, 8, 4, 2), (8, 4, 2, 4), (2048, 8, 256, 8), (6, 6, 4, 3)],
)
def test_as_few_processes_share_a_sample_as_the_samples_of_a_step_allow(
    processes: int, on_node: int, batch_size: int, degree: int
) -> None:
    assert choose_degree("auto", processes, on_node, batch_size) == degree
    check_degree(degree, processes, on_node)


def test_no_degree_serves_all_processes() -> None:
    with pytest.raises(InputError, match=r"auto.*\b16\b.*\b2\b"):
        choose_degree("auto", 16, 2, 4)


def test_samples_that_the_groups_cannot_divide_are_an_error() -> None:
    check_layout(2, 8, 4, 12)
    with pytest.raises(InputError, match=r"\b12\b.*\b8\b"):
        check_layout(1, 8, 4, 12)


def test_one_process_has_its_samples_for_itself() -> None:
    assert divided(SINGLE, 1, None, 1) is SINGLE
    with pytest.raises(InputError, match="1 process"):
        divided(SINGLE, 2, None, 1)


def test_the_group_of_one_is_the_identity() -> None:
    x = torch.tensor([1.0, 2.0])
    assert ALONE.all_reduce(x).wait() is x
    assert on_first(ALONE, lambda: 7) == 7
    check_same(ALONE, "data", "abc")
    with pytest.raises(InputError, match="bad"):
        on_first(ALONE, _bad)


class Among(Ranks):
    """One of several ranks, of which it is known how they fared."""

    def __init__(self, rank: int, *faults: str | None) -> None:
        self.rank, self.size, self._faults = rank, len(faults), list(faults)

    def all_gather_object(self, value: Any) -> list[Any]:
        assert value == self._faults[self.rank]
        return self._faults


@pytest.mark.parametrize(
    ("rank", "faults"),
    [(0, ["bad", "bad"]), (0, ["bad", None]), (1, [None, "bad", "bad"]), (2, ["no", None, "bad"])],
)
def test_the_first_rank_with_a_fault_says_it(rank: int, faults: list[str | None]) -> None:
    with pytest.raises(InputError, match="bad") as caught:
        on_all(Among(rank, *faults), _bad)
    assert caught.type is InputError


def test_other_ranks_leave_without_a_word() -> None:
    with pytest.raises(ElsewhereError, match="bad"):
        on_all(Among(1, "bad", "bad"), _bad)
    with pytest.raises(ElsewhereError, match="bad"):
        on_all(Among(0, None, "bad"), lambda: 7)
    assert on_all(Among(1, None, None), lambda: 7) == on_all(ALONE, lambda: 7) == 7


def test_a_file_that_may_not_be_read_is_such_a_fault() -> None:
    error = PermissionError(13, "Permission denied", "index.arrow")

    def closed() -> int:
        raise error

    with pytest.raises(PermissionError):
        on_all(Among(0, str(error), str(error)), closed)
    with pytest.raises(ElsewhereError, match=r"index\.arrow"):
        on_all(Among(1, str(error), str(error)), closed)


def _bad() -> int:
    raise InputError("bad")


@pytest.mark.parametrize(
    ("gpus", "local", "chosen"), [(4, 2, "cuda:2"), (1, 2, "cuda:0"), (8, 7, "cuda:7")]
)
def test_each_process_of_a_node_gets_its_gpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, local: int, chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    place = Place(rank=10, world_size=16, local_rank=local, local_size=gpus if gpus > 1 else 8)
    for name in ("auto", "cuda"):
        assert torch_device(name, place) == torch.device(chosen)
    assert current == 2 * [torch.device(chosen)]
    assert torch_device("cpu", place).type == "cpu"
    with pytest.raises(InputError, match="--device cuda:1"):
        torch_device("cuda:1", place)


def test_a_gpu_that_is_named_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    with pytest.raises(InputError, match="4 GPUs"):
        torch_device("cuda:4")
    assert current == []
    for name in ("cpu", "cuda:3", "cuda"):
        assert torch_device(name) == torch.device(name)
    assert current == [torch.device("cuda:3")]


def test_more_processes_than_gpus_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=r"4 processes .*2 GPUs"):
        torch_device("cuda", Place(rank=0, world_size=4, local_rank=0, local_size=4))
