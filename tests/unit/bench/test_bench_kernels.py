import json
import os
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend

from scalefold.bench.kernels import attention as kernels_of_attention
from scalefold.bench.kernels import catalogue, implementation, optimiser, peers, run
from scalefold.bench.kernels.agreement import FACTOR, Exact, convert, evaluate, tensors
from scalefold.bench.kernels.case import KernelCase, Work, leaf
from scalefold.bench.kernels.catalogue import all_cases, find_case
from scalefold.bench.kernels.implementation import Setting, gradients_like
from scalefold.bench.kernels.markdown import markdown_table
from scalefold.bench.kernels.peers import Peers
from scalefold.bench.kernels.table import TABLE_WIDTH, case_table
from scalefold.bench.kernels.timing import Device, Time
from scalefold.bench.kernels.tune import candidates, rules, tables_text, tune
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


def test_inputs_do_not_depend_on_what_ran_before() -> None:
    seen = []

    def note(x: Tensor) -> Tensor:
        seen.append(x.detach())
        return x.square()

    drawn = KernelCase("op", "a shape", lambda *of: (leaf(*of, 5),), note, note, Work(0), Work(0))
    Exact(drawn, CPU, torch.bfloat16)
    torch.randn(3)
    Exact(drawn, CPU, torch.bfloat16)
    first, again = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert all(map(torch.equal, first, again))


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


def test_inputs_are_beyond_the_cache_and_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []

    def time_calls(calls: list[partial]) -> Time:
        places = {next(tensors(call.args)).data_ptr() for call in calls}
        timed.append((len(calls), len(places), torch.is_grad_enabled()))
        return Time(1e-6 * len(places), "graph")

    monkeypatch.setattr(implementation, "time_calls", time_calls)
    monkeypatch.setattr(implementation, "_peak_bytes", lambda _: 0)
    # Inputs of 7.2 kB: three sets of them are more than twice what the cache holds.
    setting = Setting(torch.float32, CPU, Device(1e12, 1e13, 1e12, cache_bytes=10_000))
    numbers = setting.times(case(), reference)
    assert timed == [(3, 3, False), (3, 3, True), (3, 1, False), (3, 1, True)]
    assert numbers["seconds"] == dict.fromkeys(("forward", "forward_backward"), 3e-6)
    assert numbers["seconds_in_cache"] == dict.fromkeys(("forward", "forward_backward"), 1e-6)


def measured(name: str, microseconds: float) -> dict:
    seconds = {"forward": 1e-6 * microseconds, "forward_backward": 4e-6 * microseconds}
    in_cache = {part: 0.9 * value for part, value in seconds.items()}
    return {"name": name, "seconds": seconds, "seconds_in_cache": in_cache}


def test_records_become_a_table_of_a_page() -> None:
    floor = {"forward": 5e-6, "forward_backward": 19.97e-6}
    ours, plain = measured("ScaleFold", 46), measured("torch", 1065)
    rows = [
        ("attention", "triangle attention N=256", [ours, plain]),
        (
            "linear",
            "pair N=256",
            [
                measured("ScaleFold", 20),
                measured("torch", 157),
                {"name": "torch.compile", "failed": "it does"},
                measured("peer", 100),
            ],
        ),
        ("linear", "pair N=384", [measured("ScaleFold", 36)]),
    ]
    names = ("op", "shape", "implementations")
    cases = [
        {"setting": "general", "floor_seconds": floor} | dict(zip(names, row, strict=True))
        for row in rows
    ]
    records = [{"cases": cases[:1]}, {"cases": cases[1:]}]
    assert markdown_table(records, ["N=256"]).splitlines() == [
        "| | floor | ScaleFold | peer | torch.compile | torch |",
        "|---|---|---|---|---|---|",
        "| triangle attention N=256 | 5.0 / 20.0 | **46 / 184** | - | - | 1,065 / 4,260 |",
        "| linear, pair N=256 | 5.0 / 20.0 | **20 / 80** | 100 / 400 | - | 157 / 628 |",
    ]
    head, *_ = markdown_table(records, beside=["peer", "torch"]).splitlines()
    assert head == "| | floor | ScaleFold | peer | torch |"
    assert markdown_table(records[1:], ["N=384"], in_cache=True).splitlines() == [
        "| in the cache | ScaleFold |",
        "|---|---|",
        "| linear, pair N=384 | **32 / 130** |",
    ]


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
        "seconds_in_cache": {"forward": 9e-7, "forward_backward": 1.8e-6},
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
    found = [implementation["name"] for implementation in row["implementations"]]
    assert found == ["ScaleFold", "torch.compile", "faults", "dies"]
    assert again == {"failed": "RuntimeError: illegal memory access by faults in a shape"}
    console = Console(width=TABLE_WIDTH)
    with console.capture() as shown:
        console.print(case_table(row))
    lines = shown.get().splitlines()
    assert any("torch.compile failed: ValueError: Scalar out of range" in line for line in lines)
    assert any("faults failed: RuntimeError: illegal memory" in line for line in lines)
    assert any("dies failed: its process died" in line for line in lines)
    (ours,) = (line.split() for line in lines if line.strip().startswith("ScaleFold"))
    assert ours[1:6] == ["1.0", "2.0", "0.9", "/", "1.8"]


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
        mask = (~hidden).to(q.dtype)
        out = attention(*rows_first, gate_BRQHC=None, mask_BRK=mask, bias_BHQK=bias)
        return out.permute(0, 3, 1, 2, 4)

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


@pytest.mark.parametrize(
    ("order", "trained", "biased", "gated"),
    [
        ("RNH", False, True, True),
        ("NRH", True, True, False),
        ("NRH", True, False, False),
        ("RHN", True, True, False),
    ],
)
def test_sdpa_is_attention(order: str, trained: bool, biased: bool, gated: bool) -> None:
    shape = kernels_of_attention._Shape(1, 3, 7, 2, 8, biased, order, gated, trained)
    values = kernels_of_attention._inputs(shape, CPU, torch.float64)
    function = kernels_of_attention._gated(
        partial(kernels_of_attention._attend_by, SDPBackend.MATH)
    )
    grads = [torch.randn_like(values[0])]
    found, expected = (evaluate(f, values, grads) for f in (function, attention))
    assert len(found) == 1 + 3 + gated + (biased and trained)
    for value, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(value, exact)


@pytest.mark.parametrize("order", ["RNH", "NRH", "RHN", "HRN"])
def test_inputs_of_attention_lie_in_their_order(order: str) -> None:
    sizes = {"R": 3, "N": 7, "H": 2}
    shape = kernels_of_attention._Shape(1, 3, 7, 2, 8, order=order)
    q, *_, mask, _bias, _bias_scale, _scale = kernels_of_attention._inputs(
        shape, CPU, torch.float32
    )
    assert q.shape == (1, 3, 7, 2, 8)
    assert mask.shape == q.shape[:3]
    strides = dict(zip("RNH", q.stride()[1:4], strict=True))
    assert strides[order[2]] == 8
    assert strides[order[1]] == 8 * sizes[order[2]]
    assert strides[order[0]] == 8 * sizes[order[1]] * sizes[order[2]]


def test_each_backend_of_sdpa_serves_what_it_gives_all_gradients_of() -> None:
    def serving(shape: str) -> set[str]:
        (case,) = all_cases(["attention"], [f", {shape}"])
        return {name for name in kernels_of_attention._SDPA if case.peers[name]() is not None}

    assert serving("MSA column attention 128 x 256") == set(kernels_of_attention._SDPA)
    assert serving("triangle attention N=256") == {"SDPA memory-efficient"}
    less = "triangle attention without gate and {}, heads before residues N=256"
    assert serving(less.format("bias's gradient")) == {"SDPA cuDNN", "SDPA memory-efficient"}
    assert serving(less.format("bias")) == set(kernels_of_attention._SDPA)
    assert serving("template triangle attention N=256") == set()


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


def test_without_triton_it_is_said_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"need Triton, .* CUDA build brings it, .*make developer"):
        all_cases(["attention"])


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
    text = tables_text({"kernel": table})
    assert json.loads(text) == {"kernel": table}
    assert len(text.splitlines()) == 9


def test_nothing_is_tuned_whose_tables_cannot_be_written(tmp_path):
    """Before the GPU is measured: here there is none."""
    with pytest.raises(InputError, match=r"no/\*.json: cannot be written"):
        tune(
            [],
            folder=tmp_path / "no",
            dtype=torch.bfloat16,
            device=CPU,
            console=Console(quiet=True),
        )
