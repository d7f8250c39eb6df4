from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_mmcif(demo: Path) -> list[Path]:
    """All bundled mmCIF files."""
    paths = sorted((demo / "mirror/wwpdb").rglob("*.cif.gz"))
    assert len(paths) >= 16
    return paths
