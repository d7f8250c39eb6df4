"""What two trainings are compared by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch

_TIMES: Final = ("step_seconds", "samples_per_second", "loader_wait_seconds", "time")


def records(out: Path) -> list[dict[str, Any]]:
    """The metrics log, without what depends on the machine's speed."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in _TIMES} for line in lines]


def assert_identical(one: Any, other: Any) -> None:
    """Compare trees of numbers and tensors, to the last bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_identical(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other
