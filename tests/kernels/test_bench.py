"""The benchmark of kernels: what it compares, times, writes and refuses. No GPU is needed."""

import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend

from scalefold.ops import TORCH
from scalefold_kernels.bench import cases as registry
from scalefold_kernels.bench import peers, run, timing
from scalefold_kernels.bench.__main__ import main
from scalefold_kernels.bench.agreement import FACTOR, Exact, convert, evaluate, tensors
from scalefold_kernels.bench.case import KernelCase, Work, leaf
from scalefold_kernels.bench.cases import all_cases, attention
from scalefold_kernels.bench.table import block, markdown_table
from scalefold_kernels.bench.timing import Gpu, Setting, Time, gradients_like
from scalefold_kernels.bench.tune import candidates, rules, tables_text

CPU = torch.device("cpu")
NO_GPU = Setting(torch.bfloat16, CPU, Gpu(1e12, 1e13, 1e12, 0))
ODD = all_cases((), ["odd sizes"])


def inputs(device: torch.device, dtype: torch.dtype) -> tuple:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    return draw(40, 30), [draw(20, 30), None]


def reference(x: Tensor, parameters: list) -> tuple[Tensor, Tensor]:
    return functional.linear(x, parameters[0]), x.tanh()


def case(ours=reference) -> KernelCase:
    return KernelCase("op", "a shape", inputs, reference, ours, Work(10, 20), Work(30))


# --- the check ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ODD, ids=lambda case: f"{case.op} {case.shape}")
def test_references_are_those_of_scalefold(case: KernelCase) -> None:
    """Both are plain torch; in float64 they agree to rounding."""
    theirs = {
        "attention": TORCH.attention,
        "global_attention": TORCH.global_attention,
        "linear": TORCH.residual_linear,
        "pointwise_attention": TORCH.pointwise_attention,
        "transition": TORCH.transition,
    }
    if case.op == "norm":
        whole = "projection" in case.shape
        other = TORCH.normed_projection if whole else TORCH.layer_norm
    elif case.op == "outer_product":
        whole = "operands" in case.shape
        other = TORCH.outer_product_operands if whole else TORCH.outer_product_mean
    elif case.op == "triangle":
        multiply = getattr(TORCH, f"triangle_product_{case.shape.split()[2]}")

        def other(z: Tensor, mask: Tensor, projection: list, output: list) -> Tensor:
            a, b, gate, z = TORCH.triangle_projection(z, mask, *projection)
            return TORCH.triangle_output(z, multiply(a, b), gate, *output, None)
    else:
        other = theirs[case.op]
    given = convert((case.check_inputs or case.inputs)(CPU, torch.float32), torch.float64)
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

    drawn = KernelCase("op", "a shape", lambda *of: (leaf(*of, 5),), note, note)
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
    row = run.measure(case(wrong), NO_GPU, None)
    assert not row["right"]
    assert row["agreement"]["tensor"] == tensor
    assert row["implementations"] == []
    assert f"WRONG: {tensor}" in block(row)
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
        reference, inputs(CPU, torch.float32), [torch.ones(40, 20), torch.ones(40, 30)]
    )
    assert [tuple(v.shape) for v in values] == [(40, 20), (40, 30), (40, 30), (20, 30)]


# --- times --------------------------------------------------------------------------------------


def test_inputs_are_beyond_the_cache_and_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []

    def time_calls(calls: list[partial]) -> Time:
        places = {next(tensors(call.args)).data_ptr() for call in calls}
        timed.append((len(calls), len(places), torch.is_grad_enabled()))
        return Time(1e-6 * len(places), "graph")

    monkeypatch.setattr(timing, "time_calls", time_calls)
    monkeypatch.setattr(timing, "_peak_bytes", lambda _: 0)
    # Inputs of 7.2 kB: three sets of them are more than twice what the cache holds.
    setting = Setting(torch.float32, CPU, Gpu(1e12, 1e13, 1e12, cache_bytes=10_000))
    numbers = setting.times(case(), reference)
    assert timed == [(3, 3, False), (3, 3, True), (3, 1, False), (3, 1, True)]
    assert numbers["seconds"] == dict.fromkeys(("forward", "forward_backward"), 3e-6)
    assert numbers["seconds_in_cache"] == dict.fromkeys(("forward", "forward_backward"), 1e-6)


def test_gradients_of_slices_are_slices_of_one_tensor() -> None:
    a, b = torch.zeros(3, 6).split([2, 4], -1)
    first, second, alone = gradients_like([a, b, torch.zeros(3, 2)])
    assert first.stride() == (6, 1)
    assert second.data_ptr() == first.data_ptr() + 2 * 4
    assert alone.stride() == (2, 1)


def test_the_floor_is_the_slowest_of_three_rates() -> None:
    gpu = Gpu(
        bytes_per_second=4.0, flops_per_second=8.0, exponentials_per_second=2.0, cache_bytes=1
    )
    assert gpu.floor(Work(bytes=8, flops=8)) == 2.0
    assert gpu.floor(Work(bytes=8, flops=32)) == 4.0
    assert gpu.floor(Work(bytes=8, flops=8, exponentials=10)) == 5.0


TIMES = {
    "seconds": {"forward": 1e-6, "forward_backward": 2e-6},
    "seconds_in_cache": {"forward": 9e-7, "forward_backward": 1.8e-6},
    "method": {"forward": "graph", "forward_backward": "graph"},
    "peak_bytes": 0,
}


def faulty(place: tuple[str, str, str], name: str, setting: Setting) -> None:
    if name == "dies":
        os._exit(1)
    if name != "is not installed":
        raise RuntimeError(f"illegal memory access by {name} in {place[2]}")


def test_a_peer_that_fails_is_named_and_the_rest_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def uncompilable(*_: object, **__: object) -> None:
        raise ValueError("at 33:38:\n  x * y\n  ^\nScalar out of range")

    monkeypatch.setattr(Setting, "times", lambda *arguments: TIMES)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: uncompilable)
    monkeypatch.setattr(run, "measure_peer", faulty)
    names = ("faults", "dies", "is not installed")
    with_peers = replace(case(), peers=dict.fromkeys(names, lambda: None))
    with run.Peers(NO_GPU) as others:
        row = run.measure(with_peers, NO_GPU, others)
        again = others.measure(with_peers, "faults")  # in a new process
    found = [implementation["name"] for implementation in row["implementations"]]
    assert found == ["ScaleFold", "torch", "torch.compile", "faults", "dies"]
    assert again == {"failed": "RuntimeError: illegal memory access by faults in a shape"}
    shown = block(row)
    for failure in (
        "ValueError: Scalar out of range",
        "RuntimeError: illegal memory",
        "its process",
    ):
        assert failure in shown
    (ours,) = (line for line in shown.splitlines() if line.strip().startswith("ScaleFold"))
    assert "1.0 / 2.0" in ours


def test_a_failure_of_ours_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ImportError("no module named tqdm")

    monkeypatch.setattr(Setting, "times", broken)
    with pytest.raises(ImportError):
        run.measure(case(), NO_GPU, None)


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
    shape = attention.Shape(1, 7, 7, 2, 16)
    known = {"biased": True, "trained": True, "samples": 1, "channels": 16}
    function = peers.attention_peers(**known, square=True)["trifast"]()
    assert function is not None
    values = attention.inputs(replace(shape, rows=rows), CPU, torch.float64)
    values[4][:, :, -2:] = 0
    grads = [torch.randn_like(values[0])]
    found, expected = (evaluate(f, values, grads) for f in (function, TORCH.attention))
    for value, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(value, exact)
    assert "trifast" not in peers.attention_peers(**known, square=False)


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
    shape = attention.Shape(1, 3, 7, 2, 8, biased, order, gated, trained)
    values = attention.inputs(shape, CPU, torch.float64)
    function = peers._gated(partial(peers.attend_by, SDPBackend.MATH))
    grads = [torch.randn_like(values[0])]
    found, expected = (evaluate(f, values, grads) for f in (function, TORCH.attention))
    assert len(found) == 1 + 3 + gated + (biased and trained)
    for value, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(value, exact)


@pytest.mark.parametrize("order", ["RNH", "NRH", "RHN", "HRN"])
def test_inputs_of_attention_lie_in_their_order(order: str) -> None:
    sizes = {"R": 3, "N": 7, "H": 2}
    shape = attention.Shape(1, 3, 7, 2, 8, order=order)
    q, *_, mask, _bias, _bias_scale, _scale = attention.inputs(shape, CPU, torch.float32)
    assert q.shape == (1, 3, 7, 2, 8)
    assert mask.shape == q.shape[:3]
    strides = dict(zip("RNH", q.stride()[1:4], strict=True))
    assert strides[order[2]] == 8
    assert strides[order[1]] == 8 * sizes[order[2]]
    assert strides[order[0]] == 8 * sizes[order[1]] * sizes[order[2]]


def test_each_backend_of_sdpa_serves_what_it_gives_all_gradients_of() -> None:
    def serving(shape: str) -> set[str]:
        (found,) = all_cases(["attention"], [f", {shape}"])
        return set(peers.SDPA) & set(found.peers)

    assert serving("MSA column attention 128 x 256") == set(peers.SDPA)
    assert serving("triangle attention N=256") == {"SDPA memory-efficient"}
    less = "triangle attention without gate and {}, heads before residues N=256"
    assert serving(less.format("bias's gradient")) == {"SDPA cuDNN", "SDPA memory-efficient"}
    assert serving(less.format("bias")) == set(peers.SDPA)
    assert serving("template triangle attention N=256") == set()


# --- cases, records, command line ---------------------------------------------------------------


def test_cases_are_chosen_by_op_and_by_any_of_several_texts() -> None:
    chosen = all_cases(["attention", "triangle"], ["N=384", "column attention"])
    assert {(case.op, case.shape.rsplit(maxsplit=1)[-1]) for case in chosen} == {
        ("attention", "N=384"),
        ("attention", "256"),
        ("triangle", "N=384"),
    }
    with pytest.raises(LookupError, match="'N=385' or 'rows of'"):
        all_cases((), ["N=385", "rows of"])


def test_odd_sizes_are_not_timed_unasked() -> None:
    assert not {case.setting for case in all_cases()} & {"odd sizes"}
    assert ODD
    assert {case.op for case in ODD} == {case.op for case in all_cases()}


@pytest.mark.parametrize("command", ["run", "check", "tune"])
def test_an_unknown_op_is_told_those_there_are_also_without_a_gpu(
    command: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--op", "atention"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "no benchmark of atention; did you mean attention? There are attention, " in said


def test_without_a_gpu_nothing_is_measured(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        main(["run"])
    assert ended.value.code == 2
    assert "torch finds none" in capsys.readouterr().err


def test_without_triton_it_is_said_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(LookupError, match=r"need Triton, .* CUDA build brings it"):
        all_cases(["attention"])


def measured(name: str, microseconds: float) -> dict:
    seconds = {"forward": 1e-6 * microseconds, "forward_backward": 4e-6 * microseconds}
    return {"name": name, "seconds": seconds}


def test_records_become_a_table_of_a_page(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    floor = {"forward": 5e-6, "forward_backward": 19.97e-6}
    ours, plain = measured("ScaleFold", 46), measured("torch", 1065)
    others = [{"name": "torch.compile", "failed": "it does"}, measured("peer", 100)]
    rows = [
        ("attention", "triangle attention N=256", [ours, plain]),
        ("linear", "pair N=256", [measured("ScaleFold", 20), measured("torch", 157), *others]),
        ("linear", "pair N=384", [measured("ScaleFold", 36)]),
    ]
    names = ("op", "shape", "implementations")
    cases = [
        {"setting": "general", "floor_seconds": floor} | dict(zip(names, row, strict=True))
        for row in rows
    ]
    records = [{"cases": cases[:1]}, {"cases": cases[1:]}]
    expected = [
        "| | floor | ScaleFold | peer | torch.compile | torch |",
        "|---|---|---|---|---|---|",
        "| triangle attention N=256 | 5.0 / 20.0 | **46 / 184** | - | - | 1,065 / 4,260 |",
        "| linear, pair N=256 | 5.0 / 20.0 | **20 / 80** | 100 / 400 | - | 157 / 628 |",
    ]
    assert markdown_table(records, ["N=256"]).splitlines() == expected
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file, record in zip(files, records, strict=True):
        run.write_text(file, json.dumps({"benchmark": "kernels"} | record))
    assert main(["table", *map(str, files), "--shape", "N=256"]) == 0
    assert capsys.readouterr().out.splitlines() == expected
    files[0].write_text('{"benchmark": "step"}')
    with pytest.raises(SystemExit):
        main(["table", str(files[0])])
    assert "not a record of the benchmark of kernels" in capsys.readouterr().err


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
