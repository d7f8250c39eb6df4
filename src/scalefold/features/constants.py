"""Tables of constants on a device, copied there once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_COPIES: Final[dict[tuple[int, torch.device], Tensor]] = {}


def on_device(table: NDArray[np.generic], device: torch.device) -> Tensor:
    """A module's table as a tensor; not to be changed.

    A copy from the host in the middle of other work would make the host wait for all of it.

    Parameters
    ----------
    table : ndarray
        A constant of a module: it must live as long as the process.
    device : torch.device
    """
    tensor: Any = torch.from_numpy(table)
    if device.type == "cpu":
        return tensor
    key = (id(table), device)
    if key not in _COPIES:
        _COPIES[key] = tensor.to(device)
    return _COPIES[key]


def per_residue(table: NDArray[np.generic], aatype: Tensor) -> Tensor:
    """Rows of a table by residue type: (21, ...), (N,) int64 -> (N, ...)."""
    return on_device(table, aatype.device)[aatype]
