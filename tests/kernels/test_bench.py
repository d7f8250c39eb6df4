"""The benchmark of kernels: what it compares, times, writes and refuses. No GPU is needed."""

import json
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from scalefold.ops import TORCH
from scalefold_kernels.bench import __main__ as command_line
from scalefold_kernels.bench import peers, run, timing
from scalefold_kernels.bench.agreement import FACTOR, Exact, convert, evaluate, tensors
from scalefold_kernels.bench.case import Draw, KernelCase, chosen
from scalefold_kernels.bench.cases import CASES, attention_inputs
from scalefold_kernels.bench.timing import Time, gradients_like, input_sets
from scalefold_kernels.bench.tune import candidates, rules, tables_text

CPU = torch.device("cpu")
ODD = chosen(CASES, (), ["odd sizes"], odd=False)


def inputs(draw: Draw) -> tuple:
    return draw(40, 30), [draw(20, 30), None]


def reference(x: Tensor, parameters: list) -> tuple[Tensor, Tensor]:
    return functional.linear(x, parameters[0]), x.tanh()


def case(ours=reference) -> KernelCase:
    return KernelCase("op", "a shape", inputs, reference, ours)


# --- the check ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ODD, ids=lambda case: f"{case.op} {case.shape}")
def test_references_are_those_of_scalefold(case: KernelCase) -> None:
    """Both are plain torch; in float64 they agree to rounding."""
    if case.op == "triangle":
        multiply = getattr(TORCH, f"triangle_product_{case.shape.split()[2]}")

        def other(z: Tensor, mask: Tensor, projection: list, output: list) -> Tensor:
            a, b, gate, z = TORCH.triangle_projection(z, mask, *projection)
            return TORCH.triangle_output(z, multiply(a, b), gate, *output, None)
    else:
        exported = vars(import_module(f"scalefold_kernels.ops.{case.op}"))
        (name,) = exported.keys() & vars(TORCH).keys()
        other = getattr(TORCH, name)
    given = convert(case.check_inputs(Draw(CPU, torch.float32)), torch.float64)
    grads = [torch.randn_like(out) for out in tensors(case.reference(*given))]
    found, expected = (evaluate(f, given, grads) for f in (case.reference, other))
    for one, another in zip(found, expected, strict=True):
        torch.testing.assert_close(one, another)


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

    drawn = KernelCase("op", "a shape", lambda draw: (draw(5),), note, note)
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
    asked = replace(case(), inputs=lambda _: numbers, reference=torch.square)
    agreement = Exact(asked, CPU, torch.bfloat16).agreement(torch.square)
    assert agreement.good
    assert agreement.limit == FACTOR * 8 * 2.0**-24
    assert not Exact(asked, CPU, torch.bfloat16).agreement(in_bfloat16).good


WRONG = [
    (lambda x, p: ((y := x @ p[0].T) + 0.02 * y.detach(), x.tanh()), "output 0"),
    (lambda x, p: (functional.linear(x, p[0]), x.tanh() * float("nan")), "output 1"),
    (lambda x, p: (functional.linear(x, p[0].detach() * 2 - p[0]), x.tanh()), "gradient 1"),
    (lambda x, p: (functional.linear(x.detach(), p[0]), x.tanh()), "gradient 0"),
]


@pytest.mark.parametrize(("wrong", "tensor"), WRONG)
def test_what_is_wrong_is_named_and_has_no_times(
    wrong, tensor: str, capsys: pytest.CaptureFixture
) -> None:
    row = run.measure(case(wrong), torch.bfloat16, CPU)
    assert not row["right"]
    assert row["agreement"]["tensor"] == tensor
    assert row["implementations"] == []
    assert f"WRONG: {tensor}" in capsys.readouterr().out
    assert not run.check([case(wrong)], torch.bfloat16, CPU)
    assert f"WRONG: {tensor}" in capsys.readouterr().out
    assert run.check([case()], torch.bfloat16, CPU)


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


def test_gradients_of_all_inputs() -> None:
    values = evaluate(
        reference, inputs(Draw(CPU, torch.float32)), [torch.ones(40, 20), torch.ones(40, 30)]
    )
    assert [tuple(v.shape) for v in values] == [(40, 20), (40, 30), (40, 30), (20, 30)]


# --- times --------------------------------------------------------------------------------------


def test_inputs_are_beyond_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []

    def time_calls(calls: list[partial]) -> Time:
        timed.append((len(calls), torch.is_grad_enabled()))
        return Time(1e-6 * len(calls), "graph")

    monkeypatch.setattr(timing, "time_calls", time_calls)
    gpu = SimpleNamespace(L2_cache_size=10_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    # Inputs of 7.2 kB: three sets of them are more than twice what the cache holds.
    sets = input_sets(inputs, CPU, torch.float32)
    assert len({next(tensors(one)).data_ptr() for one in sets}) == 3
    numbers = timing.times(reference, sets)
    assert timed == [(3, False), (3, True)]
    assert numbers["seconds"] == dict.fromkeys(("forward", "forward_backward"), 3e-6)


def test_gradients_of_slices_are_slices_of_one_tensor() -> None:
    a, b = torch.zeros(3, 6).split([2, 4], -1)
    first, second, alone = gradients_like([a, b, torch.zeros(3, 2)])
    assert first.stride() == (6, 1)
    assert second.data_ptr() == first.data_ptr() + 2 * 4
    assert alone.stride() == (2, 1)


TIMES = {
    "seconds": {"forward": 1e-6, "forward_backward": 2e-6},
    "method": {"forward": "graph", "forward_backward": "graph"},
}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU: what runs takes one microsecond."""
    monkeypatch.setattr(run, "times", lambda *_: TIMES)
    monkeypatch.setattr(run, "input_sets", lambda make, *of: [make(Draw(*of))])


@pytest.mark.usefixtures("timed")
def test_a_peer_that_fails_is_named_and_the_rest_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def uncompilable(*_: object, **__: object) -> None:
        raise ValueError("at 33:38:\n  x * y\n  ^\nScalar out of range")

    def faults(*_: object) -> None:
        raise RuntimeError("illegal memory access")

    def is_missing(*_: object) -> None:
        raise ModuleNotFoundError("no module named peer")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: uncompilable)
    with_peers = replace(
        case(), peers={"faults": faults, "is missing": is_missing, "serves": reference}
    )
    found = run.measure_others(with_peers, torch.bfloat16, CPU)
    assert found[:2] == [
        {"name": "torch.compile", "failed": "ValueError: Scalar out of range"},
        {"name": "faults", "failed": "RuntimeError: illegal memory access"},
    ]
    assert [made["name"] for made in found[2:]] == ["serves"]
    assert "1.0 / 2.0" in capsys.readouterr().out


@pytest.mark.usefixtures("timed")
def test_a_run_writes_its_record_case_by_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    out = tmp_path / "record.json"
    cases = [case(), replace(case(WRONG[0][0]), shape="another")]
    assert not run.run(cases, torch.bfloat16, CPU, out, compare=True)
    record = json.loads(out.read_text())
    assert record["device"] == "a GPU"
    assert [row["right"] for row in record["cases"]] == [True, False]
    right, wrong = ([made["name"] for made in row["implementations"]] for row in record["cases"])
    assert right == ["ScaleFold", "torch", "torch.compile"]
    assert wrong == []


@pytest.mark.usefixtures("timed")
def test_a_failure_of_ours_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    row = run.measure(case(), torch.bfloat16, CPU)
    assert [made["name"] for made in row["implementations"]] == ["ScaleFold", "torch"]

    def broken(*_: object) -> None:
        raise ImportError("no module named tqdm")

    monkeypatch.setattr(run, "times", broken)
    with pytest.raises(ImportError):
        run.measure(case(), torch.bfloat16, CPU)


# --- other implementations ----------------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, 7])
def test_trifast_gets_squares(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def triangle_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, hidden: Tensor) -> Tensor:
        assert q.shape[2:4] == hidden.shape[1:] == (7, 7)  # it does not ask for the number of rows
        rows_first = (x.permute(0, 2, 3, 1, 4) for x in (q, k, v))
        mask = (~hidden).to(q.dtype)
        out = TORCH.attention(*rows_first, gate_BRQHC=None, mask_BRK=mask, bias_BHQK=bias)
        return out.permute(0, 3, 1, 2, 4)

    package = SimpleNamespace(triangle_attention=triangle_attention)
    monkeypatch.setitem(sys.modules, "trifast", package)
    values = attention_inputs(Draw(CPU, torch.float64), rows, 7, 2, 16)
    values[4][:, :, -2:] = 0
    grads = [torch.randn_like(values[0])]
    functions = (peers.trifast, TORCH.attention)
    found, expected = (evaluate(f, values, grads) for f in functions)
    for value, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(value, exact)


def test_cuequivariance_gets_heads_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def triangle_attention(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor, scale: float
    ) -> Tensor:
        rows_first = (x.transpose(2, 3) for x in (q, k, v))
        keep = mask[:, :, 0, 0].to(q.dtype)
        return TORCH.attention(*rows_first, None, keep, bias[:, 0], 1.0, scale).transpose(2, 3)

    package = SimpleNamespace(triangle_attention=triangle_attention)
    monkeypatch.setitem(sys.modules, "cuequivariance_torch", package)
    values = attention_inputs(Draw(CPU, torch.float64), 3, 7, 2, 8, gated=False)
    found, expected = (f(*values) for f in (peers.cuequivariance, TORCH.attention))
    torch.testing.assert_close(found, expected)


def test_each_peer_serves_what_it_takes() -> None:
    def serving(shape: str) -> set[str]:
        (found,) = chosen(CASES, ["attention"], [f", {shape}"], odd=False)
        return set(found.peers)

    assert serving("MSA column attention 128 x 256") == set()
    assert serving("MSA row attention 128 x 256") == {"cuEquivariance"}
    assert serving("triangle attention N=256") == {"cuEquivariance", "trifast"}


@pytest.mark.parametrize("by_columns", [False, True])
def test_inputs_of_attention_lie_in_their_order(by_columns: bool) -> None:
    values = attention_inputs(Draw(CPU, torch.float32), 3, 7, 2, 8, by_columns=by_columns)
    q, *_, mask, bias, _bias_scale, _scale = values
    assert q.shape == (1, 3, 7, 2, 8)
    assert mask.shape == q.shape[:3]
    assert q.stride() == ((336, 16, 48, 8, 1) if by_columns else (336, 112, 16, 8, 1))
    assert bias.stride()[-2:] == ((1, 7) if by_columns else (7, 1))
    assert q.is_leaf
    assert bias.is_leaf


# --- cases, records, command line ---------------------------------------------------------------


def test_cases_are_chosen_by_op_and_by_any_of_several_texts() -> None:
    found = chosen(CASES, ["attention", "triangle"], ["N=384", "column attention"], odd=False)
    assert {(case.op, case.shape.rsplit(maxsplit=1)[-1]) for case in found} == {
        ("attention", "N=384"),
        ("attention", "256"),
        ("triangle", "N=384"),
    }
    with pytest.raises(LookupError, match=r"'N=385'.*'rows of'"):
        chosen(CASES, (), ["N=385", "rows of"], odd=False)


def test_odd_sizes_are_not_timed_unasked() -> None:
    timed = chosen(CASES, (), (), odd=False)
    assert {case.setting for case in timed}.isdisjoint({"odd sizes"})
    assert {case.op for case in ODD} == {case.op for case in timed}
    assert chosen(CASES, (), (), odd=True) == CASES


@pytest.mark.parametrize("command", ["run", "check", "tune"])
def test_an_unknown_op_is_told_those_there_are_also_without_a_gpu(
    command: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main([command, "--op", "atention"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "no benchmark of atention; did you mean attention? There are attention, " in said


def test_without_a_gpu_nothing_is_measured(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        command_line.main(["run"])
    assert ended.value.code == 2
    assert "torch finds none" in capsys.readouterr().err


def test_without_triton_it_is_said_what_brings_it(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        command_line.main(["run"])
    assert ended.value.code == 2
    assert "Triton" in capsys.readouterr().err


# --- the tuner ----------------------------------------------------------------------------------


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
    for n, nearest in [(0, 100), (100, 100), (200, 100), (201, 400), (10**9, 400)]:
        fitting = [
            rule["tile"]
            for rule in made
            if rule["where"]["dtype"] == "bfloat16"
            and rule["where"]["C"] == [8, 8]
            and rule["where"]["N"][0] <= n <= rule["where"]["N"][1]
        ]
        assert fitting == [{"BLOCK": nearest + 8}]


def test_tables_are_written_one_rule_a_line() -> None:
    table = {"default": {"A": 1}, "sm_90": [{"where": {}, "tile": {"A": 2}}] * 2}
    text = tables_text({"kernel": table})
    assert json.loads(text) == {"kernel": table}
    assert len(text.splitlines()) == 9
