"""The choice of a backend: the first that serves a call, and what is said of the others."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from scalefold_kernels import backends, gpu, ops
from scalefold_kernels.backends import HOPPER, TRITON, Backend, Backends, Served, on_device, report

CPU = torch.device("cpu")
PACKAGE = "backends_of_a_test"


def module(name: str, most: int | None = None, *functions: str) -> ModuleType:
    """A backend for numbers up to ``most``."""
    made = ModuleType(f"{PACKAGE}.{name}")
    for function in functions:
        setattr(made, function, lambda number: (name, number))

    def why_not(function: str, number: int) -> str | None:
        return f"takes {most} at most, found {number}" if number > most else None

    if most is not None:
        made.__dict__["why_not"] = why_not
    return made


@pytest.fixture
def op(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backends]:
    """An op of three backends on what passes for a Hopper GPU."""
    monkeypatch.setattr(backends, "_OPS", [])
    monkeypatch.setattr(gpu, "is_hopper", lambda device: True)
    monkeypatch.setattr(gpu, "has_gluon", lambda: True)
    monkeypatch.setitem(sys.modules, PACKAGE, ModuleType(PACKAGE))
    for made in (
        module("small", 1, "forward"),
        module("hopper", 10, "forward", "backward"),
        module("triton", 100, "forward", "backward"),
    ):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    return Backends("double", PACKAGE, Backend("small", "hopper"), HOPPER, TRITON)


def test_each_folder_of_an_op_has_a_list_of_backends() -> None:
    folders = {f"{ops.__name__}.{module.name}" for module in iter_modules(ops.__path__)}
    for folder in folders:
        import_module(folder)
    listed = {op.folder for op in backends._OPS}
    assert {folder for folder in listed if folder.startswith(ops.__name__)} == folders


@pytest.mark.parametrize(("number", "name"), [(1, "small"), (2, "hopper"), (11, "triton")])
def test_the_first_that_serves_a_call_is_chosen(op: Backends, number: int, name: str) -> None:
    assert op.choose("forward", CPU, number).forward(number) == (name, number)


def test_one_without_the_function_is_passed_over(op: Backends) -> None:
    assert op.choose("backward", CPU, 1).__name__.endswith(".hopper")
    assert report()[0].passed_over == {"small": "has no backward"}


def test_where_none_serves_each_one_s_reason_is_given(op: Backends) -> None:
    with pytest.raises(ValueError, match=r"hopper.* 10 .*triton.* 100 .*101"):
        op.choose("forward", CPU, 101)
    assert report() == []


def test_it_is_remembered_which_served(op: Backends) -> None:
    for number in (5, 3):
        op.choose("forward", CPU, number)
    reasons = {"small": "takes 1 at most, found 3"}
    assert report() == [Served("double", "forward", "hopper", reasons)]


def test_a_kind_s_precondition_comes_first(op: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "is_hopper", lambda device: False)
    monkeypatch.delitem(sys.modules, f"{PACKAGE}.hopper")  # and its module is not imported
    assert op.choose("forward", CPU, 1).__name__.endswith(".triton")
    (found,) = on_device(CPU).values()
    assert "needs a Hopper GPU" in str(found["hopper"])


def test_triton_runs_on_gpus_and_in_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_knobs(interpret: bool) -> Any:
        return SimpleNamespace(runtime=SimpleNamespace(interpret=interpret))

    monkeypatch.setattr(gpu.triton, "knobs", with_knobs(True))
    assert gpu.why_not_triton(CPU) is None
    monkeypatch.setattr(gpu.triton, "knobs", with_knobs(False))
    assert "needs a GPU" in str(gpu.why_not_triton(CPU))


@pytest.mark.parametrize(
    ("capability", "hip", "triton", "hopper"),
    [
        ((7, 5), None, False, False),
        ((8, 0), None, True, False),
        ((9, 0), None, True, True),
        ((10, 0), None, True, False),
        ((9, 4), "6.4", True, False),  # MI300
    ],
)
def test_kinds_of_gpus(
    capability: tuple[int, int],
    hip: str | None,
    triton: bool,
    hopper: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.version, "hip", hip)
    device = torch.device("cuda")
    assert (gpu.why_not_triton(device) is None, gpu.is_hopper(device)) == (triton, hopper)
