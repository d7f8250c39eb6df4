"""Commands, run in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scalefold.cli import app

ROOT = Path(__file__).parents[3]
DEMO = str(ROOT / "demo/config.yaml")


@pytest.fixture(autouse=True)
def log() -> Iterator[None]:
    """A command sets up the log; it is put back for the tests of other files."""
    logger = logging.getLogger("scalefold")
    level, handlers = logger.level, logger.handlers
    yield
    logger.setLevel(level)
    logger.handlers = handlers


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments], prog_name="scalefold")
