"""Which backend serves an operation is said, with the reasons."""

import logging
from types import SimpleNamespace

import pytest
import torch

from scalefold.ops.backends import backends_on, log_backends
from scalefold_kernels import backends

CUDA = torch.device("cuda")
HOPPER = "needs a Hopper GPU"


def test_no_kernels_serve_where_none_run() -> None:
    assert backends_on(torch.device("cpu")) == []


def test_the_first_backend_that_the_device_runs_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {"hopper": HOPPER, "triton": None, "torch": None}
    monkeypatch.setattr("scalefold.ops.backends.why_not", lambda device: None)
    monkeypatch.setattr(backends, "why_not_on", lambda kind, device: reasons[kind])
    found = {op: (backend, reasons) for op, backend, reasons in backends_on(CUDA)}
    assert found["residual_linear"] == ("triton", {"hopper": HOPPER})


def test_what_has_served_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "scalefold")
    call = SimpleNamespace(op="linear", backend="triton", passed_over={"hopper": HOPPER})
    monkeypatch.setattr(backends, "report", lambda: [call, call])
    log_backends()
    first, second = caplog.messages
    assert "linear by triton" in first
    assert HOPPER in second
