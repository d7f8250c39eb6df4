"""The image that the workflow's jobs run in, with ``snakemake --sdm apptainer``."""

from __future__ import annotations

from pathlib import Path

from scalefold.config.schema import Config
from scalefold.errors import InputError


def check_image(config: Config) -> None:
    """Raise an InputError if the image is a file and not there; a registry is not asked."""
    image = config.container
    if image is not None and "://" not in image and not Path(image).exists():
        raise InputError(
            f"container: {image}: no such image file. Build or pull it (docs/containers.md), "
            "correct the path, or set null to do without"
        )
