"""Relaxation of predicted structures: a force field fixes bonds and clashes.

It needs OpenMM, which the extra ``relax`` installs; nothing else does.
"""

from __future__ import annotations

import importlib.util

from scalefold.errors import InputError


def check_openmm() -> None:
    """Raise an InputError if OpenMM is not installed."""
    if importlib.util.find_spec("openmm") is None:
        raise InputError(
            "OpenMM is not installed, which relaxation needs: pip install '.[relax]' in the folder "
            "of ScaleFold's source"
        )
