"""Predicted structures of an evaluation, as ModelCIF files with the pLDDT of each residue."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from scalefold.io.atomic import write_bytes
from scalefold.predict.model_cif import model_cif


def structure_path(folder: Path, chain_key: str) -> Path:
    """Where a chain's predicted structure is written."""
    return folder / f"{chain_key}.cif"


def write_structure(
    path: Path, name: str, aatype: Tensor, positions: Tensor, mask: Tensor, plddt: Tensor
) -> None:
    """Write one predicted chain; parameters as for `model_cif`.

    Raises
    ------
    InputError
        If the disk is full or the folder may not be written.
    """
    write_bytes(path, model_cif(name, aatype, positions, mask, plddt).encode())
