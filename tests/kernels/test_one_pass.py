"""Attention's backward in CUDA C++: what it serves, its programs, arguments of its launches.

Its values are in `test_attention.py`, on a GPU alone.
"""

import ctypes
import math
import re
from typing import Any

import pytest
import torch

from scalefold.ops.launched import launched_kernels
from scalefold_kernels.attention import hopper_one_pass, hopper_plan
from scalefold_kernels.attention.arguments import Gradients, Inputs
from scalefold_kernels.cuda import bindings, launch


@pytest.fixture(autouse=True)
def _on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without memory are taken for those of a GPU with all that the kernel needs."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(bindings, "obstacle", lambda: None)
    of_multiprocessors(132, monkeypatch)


def of_multiprocessors(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hopper_plan, hopper_one_pass):
        monkeypatch.setattr(module, "num_sms", lambda device: count)


def arguments(
    rows: int = 384,
    queries: int = 384,
    keys: int = 384,
    heads: int = 4,
    channels: int = 32,
    batch: int = 1,
    biased: bool = True,
) -> Inputs:
    """Without memory; on a GPU, by their own account."""

    def new(*shape: int) -> Any:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    q, k = (new(batch, rows, n, heads, channels) for n in (queries, keys))
    mask, bias = new(batch, rows, keys), new(batch, heads, queries, keys) if biased else None
    return Inputs(q, k, k, q, mask, bias, math.log(2), scale=math.log(2))


@pytest.mark.parametrize(
    ("changed", "served"),
    [
        ({}, True),
        ({"queries": 257, "keys": 257}, True),
        ({"rows": 1}, True),
        ({"channels": 24}, True),
        ({"keys": 256}, False),
        ({"queries": 256}, False),
        ({"queries": 392}, False),
        ({"keys": 392}, False),
        ({"channels": 16}, False),
        ({"biased": False}, False),
    ],
)
def test_which_attention_it_serves(changed: dict[str, Any], served: bool) -> None:
    assert hopper_one_pass.serves(arguments(**changed)) == served


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(torch.Tensor, "is_cuda", False), (bindings, "obstacle", lambda: "none here")],
)
def test_it_serves_none_without_a_gpu_or_a_compiler(
    owner: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, value)
    assert not hopper_one_pass.serves(arguments())


@pytest.mark.parametrize(
    ("multiprocessors", "changed", "served"),
    [
        (132, {"batch": 11}, True),  # 12 programs, a tile of a head each, of a sample
        (132, {"batch": 12}, False),
        (132, {"batch": 2, "heads": 24}, False),
        (12, {}, True),
        (11, {}, False),  # as a slice of a GPU (MIG) may have
    ],
)
def test_programs_that_wait_for_each_other_have_a_multiprocessor_each(
    multiprocessors: int, changed: dict[str, Any], served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_multiprocessors(multiprocessors, monkeypatch)
    assert hopper_one_pass.serves(arguments(**changed)) == served


@pytest.mark.parametrize("rows", [1, 5, 77, 384])
@pytest.mark.parametrize("keys", [257, 384])
@pytest.mark.parametrize(("batch", "heads"), [(1, 4), (2, 4), (1, 8), (5, 8)])
def test_its_programs_fill_a_gpu_once_and_take_each_row_of_a_tile_once(
    rows: int, keys: int, batch: int, heads: int
) -> None:
    inputs = arguments(rows=rows, keys=keys, queries=keys, batch=batch, heads=heads)
    plan = hopper_one_pass.plan(inputs)
    tiles = heads * hopper_one_pass.TILES
    assert plan.programs == tiles * plan.groups
    assert batch * plan.programs <= 132
    # As the kernel deals them: every group has rows, since none are left over or asked for twice.
    assert 1 <= plan.groups <= rows


def declared(kernel: launch.Kernel) -> list[str]:
    """Kinds of a function's parameters, as its source has them."""
    found = re.search(rf"\b{kernel.name}\((.*?)\) \{{", kernel.source.read_text(), re.DOTALL)
    assert found
    return [
        "map" if "TensorMap" in x else "pointer" if "*" in x else x.rsplit(" ", 1)[0].strip()
        for x in found[1].split(",")
    ]


KINDS = {
    ctypes.c_void_p: "pointer",
    ctypes.c_int32: "int",
    ctypes.c_int64: "long long",
    ctypes.c_float: "float",
    str: "map",
}


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("scale", [math.log(2), 32**-0.5])
def test_launches_give_what_functions_declare(
    gated: bool, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched, scaled_queries = set(), []

    def note(self: launch.Kernel, programs: Any, constants: Any, *given: Any) -> None:
        kinds = [KINDS[type(value)] for x in given for value in launch.values_of(x)]
        assert kinds == declared(self)
        launched.add(self.name)

    def backward_gate(*arguments: Any) -> None:
        scaled_queries.append(arguments[-1])

    monkeypatch.setattr(launch.Kernel, "launch", note)
    monkeypatch.setattr(hopper_one_pass, "tensor_map", lambda *_, **__: "map")
    monkeypatch.setattr(hopper_one_pass, "backward_gate", backward_gate)
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda self: 16)
    inputs = arguments(rows=2)._replace(scale=scale)
    inputs = inputs if gated else inputs._replace(gate=None)
    q, k, v, gate, *_ = inputs
    lse = torch.empty(1, 2, 4, 384, device="meta")
    sums = hopper_one_pass.backward(inputs, q, lse, q, Gradients(q, k, v, gate))
    assert sums.shape == (2, 1, 4, 384, 384)
    assert launched == {"one_pass_prepare", "one_pass"}
    assert [x is None for x in scaled_queries] == [not inputs.scales_q]


def test_it_is_among_the_kernels_that_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "attention.hopper_one_pass.one_pass"
    assert name not in launched_kernels()
    monkeypatch.setitem(launch._functions, (hopper_one_pass.ONE_PASS, (), 0), None)
    assert name in launched_kernels()
