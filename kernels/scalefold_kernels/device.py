"""Which kernels a device can run."""

from __future__ import annotations

import torch
import triton


def runs_gluon_for_hopper(device: torch.device) -> bool:
    """Whether kernels in Gluon for Hopper GPUs (H100, H200) can run.

    Gluon changes from version to version of Triton; the kernels are written in that of 3.6.
    """
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device)[0] == 9
        and triton.__version__.startswith("3.6.")
    )
