import logging
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
import triton

from scalefold.config.schema import KernelPackage
from scalefold.errors import InputError
from scalefold.ops import TORCH, Ops, select_ops
from scalefold.ops.triton import OPTIMISER, PACKAGES, optimiser_kernels, triton_ops, why_not
from scalefold_kernels.cuda import bindings
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
    assert isinstance(triton_ops(), Ops)


def test_some_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalefold.ops.triton.why_not", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    ops, cuda = select_ops(["dropout", "optimiser"], torch.device("cuda")), torch.device("cuda")
    assert ops == replace(TORCH, residual_dropout=triton_ops().residual_dropout)
    assert optimiser_kernels(["dropout", "optimiser"], cuda) is not None
    assert optimiser_kernels(["dropout"], cuda) is None
    assert select_ops([], cuda) is TORCH


@pytest.mark.parametrize(
    ("capability", "version", "warned"),
    [
        ((9, 0), "3.6.0", False),
        ((9, 0), "3.7.1", False),
        ((9, 0), "3.8.0", True),
        ((9, 0), "3.70.0", True),
        ((8, 0), "3.8.0", False),
    ],
)
def test_a_hopper_gpu_without_its_kernels_is_told_so(
    capability: tuple[int, int],
    version: str,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("scalefold.ops.triton.why_not", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(triton, "__version__", version)
    monkeypatch.setattr(bindings, "obstacle", lambda: None)
    select_ops("auto", torch.device("cuda"))
    said = f"NVIDIA H200: the kernels for it run with Triton 3.6 and 3.7, and this is {version}"
    assert [line.startswith(said) for line in caplog.messages] == [True] * warned


@pytest.mark.parametrize("capability", [(9, 0), (8, 0)])
def test_a_hopper_gpu_without_cuda_bindings_is_told_so_once(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("scalefold.ops.triton.why_not", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    monkeypatch.setattr(bindings, "obstacle", lambda: "what brings them")
    select_ops("auto", torch.device("cuda"))
    assert [line.endswith(": what brings them") for line in caplog.messages] == [True] * (
        capability == (9, 0)
    )


def test_what_make_installs_runs_the_kernels_for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = (Path(__file__).parents[3] / "envs" / "constraints.txt").read_text().splitlines()
    (version,) = (line.removeprefix("triton==") for line in pinned if line.startswith("triton=="))
    monkeypatch.setattr(triton, "__version__", version)
    assert has_gluon()


def test_named_kernels_without_a_gpu_are_an_error() -> None:
    with pytest.raises(InputError, match=r"training\.kernels"):
        select_ops(["norm", "attention"], CPU)


def test_the_configuration_knows_every_package() -> None:
    assert set(get_args(KernelPackage)) == {*PACKAGES, OPTIMISER}
