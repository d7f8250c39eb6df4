"""Commands, run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from scalefold.cli import app

ROOT = Path(__file__).parents[3]
DEMO = str(ROOT / "demo/config.yaml")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments], prog_name="scalefold")
