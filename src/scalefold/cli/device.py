"""The ``--device`` option as a torch device."""

from __future__ import annotations

import torch

from scalefold.errors import InputError


def torch_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is a GPU if there is one, otherwise the CPU.

    Raises
    ------
    InputError
        The name is not known, or this machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {name!r}: expected auto, cpu, cuda, or cuda:<number>")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise InputError(f"--device {name}: torch sees {count} GPUs here; use cpu, or auto")
    return device
