"""Device work is attributed to the modules that caused it, forward and backward."""

from __future__ import annotations

import gzip
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scalefold.bench.module_costs import module_costs, named_modules, named_range
from scalefold.bench.profile import profile_step
from scalefold.bench.trace import Span, Trace, enclosing, gpu_work, trace
from scalefold.config import Config

CPU = torch.device("cpu")


class Stack(nn.Module):
    """Two blocks, of which each multiplies; the sum is outside of them."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x.sum()


def launches(recompute: bool, file: Path) -> dict[tuple[str, str, str], int]:
    torch.manual_seed(0)
    model, x = Stack(recompute), torch.randn(4, 8)

    def work() -> None:
        with named_range("(step)"):
            loss = model(x) * 2.0
        loss.backward()

    with named_modules(model):
        work()
        costs = module_costs(trace(work, file, CPU))
    return {(cost.module, cost.phase, cost.kernel): cost.launches for cost in costs}


def test_forward_and_backward_belong_to_the_module(tmp_path: Path) -> None:
    found = launches(False, tmp_path / "t.json.gz")
    assert found["blocks.*", "forward", "aten::linear"] == 2
    # gradients of the weights of both, of the input of the second
    assert found["blocks.*", "backward", "aten::mm"] == 3
    assert found["(model)", "forward", "aten::sum"] == 1
    assert found["(model)", "backward", "aten::expand"] == 1
    assert found["(step)", "forward", "aten::mul"] == 1
    assert found["(step)", "backward", "aten::mul"] == 1
    assert not any(phase == "recomputation" for _, phase, _ in found)


def test_recomputed_work_is_told_apart(tmp_path: Path) -> None:
    found = launches(True, tmp_path / "t.json.gz")
    assert found["blocks.*", "forward", "aten::linear"] == 2
    assert found["blocks.*", "recomputation", "aten::linear"] == 2
    assert found["blocks.*", "backward", "aten::mm"] == 3


def span(name: str, start: float, end: float, thread: int = 0) -> Span:
    return Span(name, start, end, thread, start)


def test_enclosing_spans_are_outermost_first_and_of_the_same_thread() -> None:
    spans = [span("b", 1, 4), span("a", 0, 10), span("c", 4.5, 6), span("other", 0, 10, thread=1)]
    names = [
        [s.name for s in around] for around in enclosing(spans, [(0, 5), (0, 2), (1, 2), (0, 11)])
    ]
    assert names == [["a", "c"], ["a", "b"], ["other"], []]


def test_work_on_two_streams_at_a_time_is_busy_once() -> None:
    work = [span("x", 0, 3), span("y", 1, 2), span("z", 2.5, 4), span("w", 6, 7)]
    assert Trace(work, [], []).busy_seconds == 5


def test_profile_covers_passes_and_step(config: Config, shards: Path, tmp_path: Path) -> None:
    printed = StringIO()
    result = profile_step(
        config, shards, tmp_path, device=CPU, console=Console(file=printed, width=160)
    )
    assert json.loads((tmp_path / "costs.json").read_text()) == result
    for name in ("recycling pass", "training pass", "step"):
        with gzip.open(tmp_path / f"{name.replace(' ', '-')}.json.gz", "rt") as stream:
            assert json.load(stream)["traceEvents"]
    training = result["training pass"]
    total = training["seconds"]
    assert total > 0
    by_phase = {
        phase: sum(cost["seconds"] for cost in training["costs"] if cost["phase"] == phase)
        for phase in ("forward", "backward")
    }
    assert min(by_phase.values()) > 0
    unattributed = sum(
        cost["seconds"] for cost in training["costs"] if cost["module"] in ("(none)", "(autograd)")
    )
    assert unattributed < 0.1 * total
    assert {cost["phase"] for cost in result["recycling pass"]["costs"]} == {"forward"}
    assert "tri_mul_out" in printed.getvalue()
    _check_modules(json.loads((tmp_path / "modules.json").read_text())["training pass"])


def _check_modules(training: dict[str, Any]) -> None:
    """A module's time holds that of what is in it; the outermost hold nearly all."""
    times = {row["module"]: sum(row["milliseconds"].values()) for row in training["modules"]}
    for module, milliseconds in times.items():
        inner = [t for name, t in times.items() if name.rpartition(".")[0] == module]
        assert milliseconds >= sum(inner) - 1e-3 * (len(inner) + 1)  # each is rounded
    outermost = sum(t for name, t in times.items() if "." not in name)
    assert 0.95 < outermost / (1e3 * training["seconds"]) < 1.0 + 1e-6 * len(times)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_a_gpu_runs_is_the_same_with_and_without_a_file(tmp_path: Path) -> None:
    device = torch.device("cuda")
    x = torch.randn(512, 512, device=device)

    def work() -> None:
        (x @ x).relu_().sum().item()

    work()
    filed = trace(work, tmp_path / "trace.json.gz", device, host=False)
    found = gpu_work(work, device)
    assert [span.name for span in found.work] == [span.name for span in filed.work]
    assert 0 < found.busy_seconds <= found.work[-1].end - found.work[0].start
