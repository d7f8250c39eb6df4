import json
import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional

from scalefold.bench.kernels import attention as kernels_of_attention
from scalefold.bench.kernels import optimiser, peers, run
from scalefold.bench.kernels.agreement import FACTOR, Exact, convert, evaluate, tensors
from scalefold.bench.kernels.case import KernelCase, Work
from scalefold.bench.kernels.catalogue import all_cases, find_case
from scalefold.bench.kernels.implementation import Setting, gradients_like
from scalefold.bench.kernels.peers import Peers
from scalefold.bench.kernels.table import case_table
from scalefold.bench.kernels.timing import Device
from scalefold.bench.kernels.tune import candidates, rules, table_text
from scalefold.errors import InputError
from scalefold.ops.attention import attention

CPU = torch.device("cpu")


def inputs(device: torch.device, dtype: torch.dtype) -> tuple:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    return draw(40, 30), [draw(20, 30), None]


def reference(x: Tensor, parameters: list) -> tuple[Tensor, Tensor]:
    return functional.linear(x, parameters[0]), x.tanh()


def case(ours=reference) -> KernelCase:
    return KernelCase("op", "a shape", inputs, reference, ours, Work(10, 20), Work(30))


def test_the_reference_agrees_with_itself() -> None:
    agreement = Exact(case(), CPU, torch.bfloat16).agreement(reference)
    assert agreement.good
    # bfloat16 keeps 8 bits, so a rounded result is wrong by about 2^-9 of itself.
    assert 2**-11 < agreement.error < 2**-7


def test_what_is_in_float32_is_held_to_it() -> None:
    def in_bfloat16(x: Tensor) -> Tensor:
        return x.bfloat16().square().float()

    generator = torch.Generator().manual_seed(0)
    numbers = (torch.randn(40, 30, generator=generator).requires_grad_(),)
    asked = replace(case(), inputs=lambda *_: numbers, reference=torch.square)
    agreement = Exact(asked, CPU, torch.bfloat16).agreement(torch.square)
    assert agreement.good
    assert agreement.limit == FACTOR * 8 * 2.0**-24
    assert not Exact(asked, CPU, torch.bfloat16).agreement(in_bfloat16).good
    # Errors are compared with the algorithm as written, where the reference is more precise.
    rough = replace(asked, as_written=in_bfloat16)
    assert Exact(rough, CPU, torch.bfloat16).agreement(in_bfloat16).good


@pytest.mark.parametrize(
    ("wrong", "tensor"),
    [
        (lambda x, p: ((y := x @ p[0].T) + 0.02 * y.detach(), x.tanh()), "output 0"),
        (lambda x, p: (functional.linear(x, p[0]), x.tanh() * float("nan")), "output 1"),
        (lambda x, p: (functional.linear(x, p[0].detach() * 2 - p[0]), x.tanh()), "gradient 1"),
        (lambda x, p: (functional.linear(x.detach(), p[0]), x.tanh()), "gradient 0"),
    ],
)
def test_what_is_wrong_is_named(wrong, tensor: str) -> None:
    agreement = Exact(case(), CPU, torch.bfloat16).agreement(wrong)
    assert not agreement.good
    assert agreement.tensor == tensor


def test_no_times_for_what_is_wrong() -> None:
    agreement = Exact(case(), CPU, torch.bfloat16).agreement(lambda x, p: (x @ p[0].T, x))
    row = {"op": "op", "shape": "s", "setting": "general", "right": False}
    shown = case_table(row | {"agreement": vars(agreement)})
    assert isinstance(shown, str)
    assert "WRONG, so no times: output 1" in shown


def faulty(place: tuple[str, str, str], name: str, setting: Setting) -> None:
    if name == "dies":
        os._exit(1)
    if name != "does not serve it":
        raise RuntimeError(f"illegal memory access by {name} in {place[2]}")


def test_a_peer_that_fails_is_named_and_the_rest_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = {
        "seconds": {"forward": 1e-6, "forward_backward": 2e-6},
        "method": {"forward": "graph", "forward_backward": "graph"},
        "peak_bytes": 0,
    }

    def uncompilable(*_: object, **__: object) -> None:
        raise ValueError("at 33:38:\n  x * y\n  ^\nScalar out of range")

    monkeypatch.setattr(Setting, "times", lambda *arguments: times)
    monkeypatch.setattr(run, "_implementations", lambda _: [("ScaleFold", reference)])
    monkeypatch.setattr(torch, "compile", lambda *_, **__: uncompilable)
    monkeypatch.setattr(peers, "_measure", faulty)
    names = ("faults", "dies", "does not serve it")
    with_peers = replace(case(), peers=dict.fromkeys(names, lambda: None))
    setting = Setting(torch.bfloat16, CPU, Device(1e12, 1e13, 1e12, 0))
    with Peers(setting) as others:
        row = run._measure(with_peers, setting, others)
        again = others.measure(with_peers, "faults")  # in a new process
    names = [found["name"] for found in row["implementations"]]
    assert names == ["ScaleFold", "torch.compile", "faults", "dies"]
    assert again == {"failed": "RuntimeError: illegal memory access by faults in a shape"}
    console = Console(width=110)
    with console.capture() as shown:
        console.print(case_table(row))
    lines = shown.get().splitlines()
    assert any("torch.compile failed: ValueError: Scalar out of range" in line for line in lines)
    assert any("faults failed: RuntimeError: illegal memory" in line for line in lines)
    assert any("dies failed: its process died" in line for line in lines)
    assert any(line.strip().startswith("Scale") for line in lines)


def test_a_peer_that_is_not_installed_is_left_out() -> None:
    absent = find_case("attention", "initial training", "MSA row attention 128 x 256")
    setting = Setting(torch.bfloat16, CPU, Device(1e12, 1e13, 1e12, 0))
    with Peers(setting) as others:
        assert others.measure(absent, "trifast") is None  # its rows are not a square


@pytest.mark.parametrize("rows", [3, 7])
def test_trifast_gets_squares(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def triangle_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, hidden: Tensor) -> Tensor:
        assert q.shape[2:4] == hidden.shape[1:] == (7, 7)  # it does not ask for the number of rows
        rows_first = (x.permute(0, 2, 3, 1, 4) for x in (q, k, v))
        return attention(*rows_first, None, (~hidden).to(q.dtype), bias).permute(0, 3, 1, 2, 4)

    monkeypatch.setitem(
        sys.modules, "trifast", SimpleNamespace(triangle_attention=triangle_attention)
    )
    shape = kernels_of_attention._Shape(1, 7, 7, 2, 16)
    function = kernels_of_attention._trifast(shape)
    assert function is not None
    some = replace(shape, rows=rows)
    values = kernels_of_attention._inputs(some, CPU, torch.float64)
    values[4][:, :, -2:] = 0
    grads = [torch.randn_like(values[0])]
    found, expected = (evaluate(f, values, grads) for f in (function, attention))
    for value, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(value, exact)


def test_the_optimiser_is_compared_with_clipped_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimiser, "_SIZE", 1000)
    state, keep = convert(optimiser._inputs(True, CPU, torch.float32), torch.float64)
    found = optimiser._reference(state, keep)
    weights, gradient, first, second, average, _ = state
    parameter = torch.nn.Parameter(weights.clone())
    parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(parameter, 0.1)
    adam = torch.optim.Adam([parameter], 1e-3, (0.9, 0.999), 1e-6)
    adam.state[parameter] = {
        "step": torch.tensor(0.0),
        "exp_avg": first.clone(),
        "exp_avg_sq": second.clone(),
    }
    adam.step()
    after, moments = parameter.detach(), adam.state[parameter]
    expected = (after, moments["exp_avg"], moments["exp_avg_sq"], average.lerp(after, 1e-3))
    for value, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(value, exact, rtol=1e-12, atol=1e-12)


def test_a_failure_of_ours_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*inputs: object) -> Tensor:
        raise ImportError("no module named tqdm")

    monkeypatch.setattr(run, "_implementations", lambda _: [("torch", broken)])
    with pytest.raises(ImportError):
        run._measure(case(), Setting(torch.bfloat16, CPU, Device(1e12, 1e13, 1e12, 0)), None)


def test_converted_inputs_are_new_leaves_of_the_same_kind() -> None:
    x = torch.ones(2, requires_grad=True)
    keys, mask = torch.ones(2, dtype=torch.int64), torch.ones(2)
    wide = convert((x, [keys, None], mask), torch.float64)
    assert wide[0].dtype == torch.float64
    assert wide[0].is_leaf
    assert wide[0].requires_grad
    assert wide[1][0] is keys
    assert not wide[2].requires_grad
    assert len(list(tensors(wide))) == 3


def test_gradients_of_slices_are_slices_of_one_tensor() -> None:
    a, b = torch.zeros(3, 6).split([2, 4], -1)
    first, second, alone = gradients_like([a, b, torch.zeros(3, 2)])
    assert first.stride() == (6, 1)
    assert second.data_ptr() == first.data_ptr() + 2 * 4
    assert alone.stride() == (2, 1)


def test_gradients_of_all_inputs() -> None:
    values = evaluate(
        reference, inputs(CPU, torch.float32), [torch.ones(40, 20), torch.ones(40, 30)]
    )
    assert [tuple(v.shape) for v in values] == [(40, 20), (40, 30), (40, 30), (20, 30)]


def test_the_floor_is_the_slowest_of_three_rates() -> None:
    gpu = Device(
        bytes_per_second=4.0, flops_per_second=8.0, exponentials_per_second=2.0, cache_bytes=1
    )
    assert gpu.floor(Work(bytes=8, flops=8)) == 2.0
    assert gpu.floor(Work(bytes=8, flops=32)) == 4.0
    assert gpu.floor(Work(bytes=8, flops=8, exponentials=10)) == 5.0


def test_cases_are_chosen_by_op_and_by_any_of_several_texts() -> None:
    chosen = all_cases(["attention", "triangle"], ["N=384", "column"])
    assert {(case.op, case.shape.rsplit(maxsplit=1)[-1]) for case in chosen} == {
        ("attention", "N=384"),
        ("attention", "256"),
        ("triangle", "N=384"),
    }
    with pytest.raises(InputError, match="no shape contains 'N=385' or 'rows of'; there are: "):
        all_cases((), ["N=385", "rows of"])


def test_candidates_are_all_combinations_or_a_list() -> None:
    assert list(candidates({"candidates": {"A": [1, 2], "B": [3]}})) == [
        {"A": 1, "B": 3},
        {"A": 2, "B": 3},
    ]
    assert list(candidates({"candidates": [{"A": 1}]})) == [{"A": 1}]
    assert list(candidates({})) == []


def test_rules_cover_every_size_once() -> None:
    found = [
        ({"N": n, "C": c, "dtype": "bfloat16"}, {"BLOCK": n + c})
        for n in (100, 400)
        for c in (8, 9)
    ]
    made = rules(found, ["N"])
    assert len(made) == 4
    for n, tile in [(0, 100), (100, 100), (200, 100), (201, 400), (10**9, 400)]:
        fitting = [
            rule["tile"]
            for rule in made
            if rule["where"]["dtype"] == "bfloat16"
            and rule["where"]["C"] == [8, 8]
            and rule["where"]["N"][0] <= n <= rule["where"]["N"][1]
        ]
        assert fitting == [{"BLOCK": tile + 8}]


def test_tables_are_written_one_rule_a_line() -> None:
    table = {"default": {"A": 1}, "sm_90": [{"where": {}, "tile": {"A": 2}}] * 2}
    text = table_text(table)
    assert json.loads(text) == table
    assert len(text.splitlines()) == 7
