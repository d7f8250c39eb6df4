import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest
import torch
import triton

from scalefold.config.schema import KernelPackage, RetiredPackage, TrainingConfig
from scalefold.errors import InputError
from scalefold.ops import TORCH, Ops, select_ops
from scalefold.ops.kernels import PACKAGES, kernel_ops, select_gather, why_not
from scalefold_kernels.gpu import has_gluon

CPU = torch.device("cpu")


def test_auto_without_a_gpu_is_torch_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "scalefold")
    assert select_ops("auto", CPU) is TORCH
    (line,) = caplog.messages
    assert "the device is cpu" in line


def test_torch_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "scalefold")
    assert select_ops("torch", CPU) is TORCH
    assert not caplog.messages


def test_triton_without_a_gpu_is_an_error() -> None:
    with pytest.raises(InputError, match=r"training\.kernels"):
        select_ops("triton", CPU)


def test_old_gpus_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    obstacle = why_not(torch.device("cuda"))
    assert obstacle is not None
    assert "Tesla V100 has 7.0" in obstacle
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert why_not(torch.device("cuda")) is None
    assert isinstance(select_ops("auto", torch.device("cuda")), Ops)


def test_the_kernels_fill_the_record() -> None:
    ops = kernel_ops()
    for op in fields(Ops):
        assert getattr(ops, op.name) is not getattr(TORCH, op.name), op.name


def test_some_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalefold.ops.kernels.why_not", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    ops, cuda = select_ops(["transition"], torch.device("cuda")), torch.device("cuda")
    assert ops == replace(TORCH, transition=kernel_ops().transition)
    assert select_gather(["transition"], cuda) is not None
    assert select_gather([], cuda) is select_gather("torch", cuda) is None
    assert select_ops([], cuda) is TORCH


@pytest.mark.parametrize(
    ("capability", "version", "warned"),
    [
        ((9, 0), "3.6.0", False),
        ((9, 0), "3.7.1", False),
        ((9, 0), "3.9.0", False),
        ((9, 0), "3.10.0", True),
        ((9, 0), "3.70.0", True),
        ((8, 0), "3.10.0", False),
    ],
)
def test_a_hopper_gpu_without_its_kernels_is_told_so(
    capability: tuple[int, int],
    version: str,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("scalefold.ops.kernels.why_not", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(triton, "__version__", version)
    select_ops("auto", torch.device("cuda"))
    assert all("NVIDIA H200" in line and version in line for line in caplog.messages)
    assert len(caplog.messages) == warned


def test_what_make_installs_runs_the_kernels_for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = (Path(__file__).parents[3] / "envs" / "constraints.txt").read_text().splitlines()
    (version,) = (line.removeprefix("triton==") for line in pinned if line.startswith("triton=="))
    monkeypatch.setattr(triton, "__version__", version)
    assert has_gluon()


def test_named_kernels_without_a_gpu_are_an_error() -> None:
    with pytest.raises(InputError, match=r"training\.kernels"):
        select_ops(["norm", "attention"], CPU)


def test_packages_of_earlier_versions_are_accepted_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "scalefold")
    monkeypatch.setattr("scalefold.ops.kernels.why_not", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    retired = list(get_args(RetiredPackage))
    assert TrainingConfig(kernels=["norm", *retired]).kernels
    assert select_ops(["norm", *retired], torch.device("cuda")) == kernel_ops(["norm"])
    assert select_ops(retired, CPU) is TORCH
    assert all(", ".join(retired) in line for line in caplog.messages)
    assert len(caplog.messages) == 2


def test_the_configuration_knows_every_package() -> None:
    assert set(get_args(KernelPackage)) == {*PACKAGES}
