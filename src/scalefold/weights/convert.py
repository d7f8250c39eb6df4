"""Import from and export to other codes' weight files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Literal, cast, get_args

import torch
from torch import Tensor

from scalefold.config.model import ModelConfig
from scalefold.errors import InputError
from scalefold.io.atomic import atomic_file
from scalefold.weights.alphafold import read_alphafold
from scalefold.weights.matching import State, check_state
from scalefold.weights.mlperf import read_mlperf
from scalefold.weights.openfold import read_openfold

Format = Literal["openfold", "alphafold", "mlperf"]
"""The code whose names and layout a file has."""


def import_weights(path: Path, source_format: Format, config: ModelConfig) -> State:
    """Read another code's weights for a model; strict.

    Parameters
    ----------
    path : Path
        ``.npz`` for AlphaFold, a torch file for the others.

    Returns
    -------
    dict of str to Tensor
        float32, ScaleFold's names, in the model's order.

    Raises
    ------
    InputError
        Naming the file, and listing parameters that are missing, unknown or misshapen.
    """
    match source_format:
        case "openfold":
            state = read_openfold(path)
        case "alphafold":
            state = read_alphafold(path, config)
        case "mlperf":
            state = read_mlperf(path)
        case _:
            raise InputError(
                f"weight format {source_format!r} is not known, choose one of "
                f"{', '.join(get_args(Format))}"
            )
    return check_state(state, config, str(path))


def guess_format(path: Path) -> Format:
    """Format by file name: ``.npz`` is AlphaFold's, anything else is taken for OpenFold's."""
    return "alphafold" if path.suffix == ".npz" else "openfold"


def export_weights(state: Mapping[str, Tensor], config: ModelConfig, path: Path) -> None:
    """Write weights as OpenFold's current version reads them; strict, atomic.

    Raises
    ------
    InputError
        If the state is not the model's, ``path`` is a folder, or the file cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder; the weights are one file, name it")
    checked = check_state(state, config, "the state to export")
    # Contiguous copies: a view of a flat buffer would take the whole buffer into the file.
    plain = {name: value.cpu().clone() for name, value in checked.items()}
    with atomic_file(path) as file:
        torch.save(plain, cast(IO[bytes], file))
