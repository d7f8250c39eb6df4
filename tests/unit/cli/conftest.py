"""Commands, run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scalefold.cli import app

ROOT = Path(__file__).parents[3]
DEMO = str(ROOT / "demo/config.yaml")


@pytest.fixture(autouse=True)
def _log(log_is_put_back: None) -> None:
    """A command sets up the log."""


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments], prog_name="scalefold")
