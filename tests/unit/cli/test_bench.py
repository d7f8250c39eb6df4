"""What benchmarks and devices say before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.conftest import DEMO, run

from scalefold.errors import InputError


@pytest.mark.parametrize(
    "command",
    [
        "bench step",
        "bench ladder",
        "bench evaluation",
        "bench prediction",
        "bench scaling",
        "bench curves",
        "profile",
    ],
)
def test_the_model_is_not_timed_on_a_cpu_unasked(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    options = ["-c", DEMO, "--out", str(tmp_path / "out")]
    if command not in ("bench evaluation", "bench prediction"):
        options += ["--shards", str(tmp_path)]
    if "curves" in command:
        options += ["--reference", "training.precision=fp32"]
    result = run(*command.split(), *options)
    assert result.exit_code == 2
    assert "--device cpu" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    ["step", "ladder", "evaluation", "prediction", "scaling", "curves", "loader"],
)
def test_a_benchmark_is_not_begun_whose_record_cannot_be_written(name: str, tmp_path: Path) -> None:
    """Before all else: here there is neither a GPU nor shards."""
    out = tmp_path / "no/record.json"
    options = ["--out", str(out), "--device", "cpu", "-c", DEMO]
    if name not in ("evaluation", "prediction"):
        options += ["--shards", str(tmp_path)]
    if name == "curves":
        options += ["--reference", "training.precision=fp32"]
    result = run("bench", name, *options)
    assert result.exit_code == 2
    assert f"{out}: " in result.stderr


def test_device_errors() -> None:
    from scalefold.cli.device import torch_device

    assert torch_device("cpu").type == "cpu"
    assert torch_device("auto").type in ("cpu", "cuda")
    for name, message in (("gpu", "cpu"), ("cuda:99", "cuda:99")):
        with pytest.raises(InputError, match=message):
            torch_device(name)
