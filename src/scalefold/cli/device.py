"""The ``--device`` option as a torch device."""

from __future__ import annotations

import torch

from scalefold.errors import InputError
from scalefold.launcher import Place


def torch_device(name: str, place: Place | None = None) -> torch.device:
    """Return the device of a name; ``auto`` is a GPU if there is one, otherwise the CPU.

    Of several processes on a node each gets its own GPU, unless the launcher lets each see one. It
    becomes the thread's current one: there graphs are captured and Triton's kernels launched.

    Raises
    ------
    InputError
        The name is not known, this machine has no such device, or a GPU is named to several
        processes.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {name!r}: expected auto, cpu, cuda, or cuda:<number>")
    count = torch.cuda.device_count()
    if place is not None and device.type == "cuda":
        if device.index is not None:
            raise InputError(
                f"--device {name}: each process that a launcher starts gets a GPU of its own; use "
                "cuda, or auto"
            )
        device = torch.device("cuda", place.local_rank if count > 1 else 0)
        if place.local_size > count > 1:
            raise InputError(
                f"{place.local_size} processes on this node, but torch sees {count} GPUs: start as "
                "many processes as GPUs"
            )
    if device.type == "cuda" and (device.index or 0) >= count:
        raise InputError(f"--device {name}: torch sees {count} GPUs here; use cpu, or auto")
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def measured_device(name: str, place: Place | None = None) -> torch.device:
    """`torch_device` of a command that times the model: a CPU only where it is named.

    Raises
    ------
    InputError
        As `torch_device`; or the name is ``auto`` and there is no GPU.
    """
    if name == "auto" and not torch.cuda.is_available():
        raise InputError(
            "torch finds no GPU, and a step of the full model takes long on a CPU: run this on a "
            "machine with a GPU, or add --device cpu (preset tiny takes seconds)"
        )
    return torch_device(name, place)
