from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_wwpdb() -> Path:
    """The bundled structures."""
    return Path(__file__).parents[3] / "demo/mirror/wwpdb"
