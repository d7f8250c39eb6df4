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

    It is copied once, since each copy from the host would make the host wait for other work.

    Parameters
    ----------
    table : ndarray
        A constant of a module, which lives as long as the process.
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
