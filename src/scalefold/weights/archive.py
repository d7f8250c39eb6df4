"""Whose a weight file is: torch's and numpy's both are zip archives, of other names inside."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Literal


def archive_kind(path: Path) -> Literal["torch", "npz"] | None:
    """Who wrote an archive: `torch.save` or `numpy.savez`; None: another file, or none at all."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return None
    if any(name.endswith("/data.pkl") for name in names):
        return "torch"
    return "npz" if names and all(name.endswith(".npy") for name in names) else None
