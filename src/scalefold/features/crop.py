"""Residue crop and padding, by the dimensions that the feature contract states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from torch.nn import functional

from scalefold.errors import InputError
from scalefold.features.alignment import Window
from scalefold.features.contract import ALL_FEATURES, Features
from scalefold.features.random import integers_below


def choose_window(
    length: int,
    crop_size: int,
    *,
    draw: Literal["alphafold", "uniform"],
    clamped: bool,
    shift: float,
    start: float,
) -> Window:
    """Choose the residues that a training sample is cropped to (Suppl. sec. 1.2.8).

    Parameters
    ----------
    length : int
        Residues of the chain.
    crop_size : int
    draw : {"alphafold", "uniform"}
        AlphaFold2 prefers crops near the N-terminus in samples whose FAPE is not clamped.
    clamped : bool
        Whether the backbone FAPE of this sample is clamped.
    shift, start : float
        Uniform in [0, 1).
    """
    size = min(length, crop_size)
    last_start = length - size
    if draw == "alphafold" and not clamped:
        last_start -= _integer(shift, last_start + 1)
    return Window(_integer(start, last_start + 1), size)


def pad(features: Features, sizes: Mapping[str, int]) -> Features:
    """Pad unbatched features with zeros to the sizes of the named dimensions.

    Parameters
    ----------
    features : dict
    sizes : mapping of dimension letter to size

    Raises
    ------
    InputError
        If a tensor is larger than the size to pad to.
    """
    padded = {}
    for name, tensor in features.items():
        widths: list[int] = []
        for dim, size in zip(ALL_FEATURES[name].dims[1:], tensor.shape):
            target = sizes[dim] if isinstance(dim, str) else size
            if size > target:
                raise InputError(
                    f"feature {name!r} has {size} along dimension {dim}, more than the {target} to "
                    "pad to"
                )
            widths[:0] = (0, target - size)
        padded[name] = functional.pad(tensor, widths) if any(widths) else tensor
    return padded


def _integer(unit: float, bound: int) -> int:
    return int(integers_below(np.asarray([unit]), bound)[0])
