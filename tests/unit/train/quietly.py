"""A training as most tests want it."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from scalefold.config import Config
from scalefold.train.start import TrainingResult, train


def train_quietly(config: Config, shards: Path, out: Path, **more: Any) -> TrainingResult:
    """`train`: from the start, on the CPU, not stopped, its progress shown to nobody."""
    plain: dict[str, Any] = {
        "resume": False,
        "device": torch.device("cpu"),
        "stop": threading.Event(),
        "console": Console(file=io.StringIO()),
    }
    return train(config, shards, out, **plain | more)
