"""Structural violation loss (Suppl. sec. 1.9.11): bonds, angles and clashes of a prediction.

Legend: B samples, N residues.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import torch
from torch import Tensor

from scalefold.chem.bounds import ATOM14_RADIUS_ANGSTROM, atom14_distance_bounds
from scalefold.chem.residues import ATOM14, RESTYPE_INDEX
from scalefold.chem.stereochemistry import (
    PEPTIDE_BOND_LENGTH_ANGSTROM,
    PEPTIDE_BOND_STDDEV_ANGSTROM,
    PEPTIDE_COS_C_N_CA,
    PEPTIDE_COS_CA_C_N,
)
from scalefold.loss.masked import float64_sum, masked_mean

TOLERANCE_FACTOR: Final = 12.0
"""Standard deviations of the literature value that are allowed."""
OVERLAP_TOLERANCE_ANGSTROM: Final = 1.5
"""Overlap of van der Waals spheres that is allowed."""

_N, _CA, _C = 0, 1, 2  # atom14 slots of the backbone, the same in all residue types
_PROLINE: Final = RESTYPE_INDEX["P"]
_SG: Final = ATOM14[RESTYPE_INDEX["C"]].index("SG")
_EPS_BOND: Final = 1e-6
_EPS_DISTANCE: Final = 1e-10


class _Tables(NamedTuple):
    radius: Tensor  # (21, 14)
    lower: Tensor  # (21, 14, 14)
    upper: Tensor  # (21, 14, 14)


def clash_tables(device: torch.device, dtype: torch.dtype) -> _Tables:
    """Radii and bounds as tensors. What is compiled takes them for constants."""
    return _kept_tables(device, dtype)


@functools.cache
def _kept_tables(device: torch.device, dtype: torch.dtype) -> _Tables:
    # Kept on the device: a copy from the host has no place in a captured CUDA graph. Never made as
    # inference tensors, which could not take part in a later backward pass.
    bounds = atom14_distance_bounds(OVERLAP_TOLERANCE_ANGSTROM, TOLERANCE_FACTOR)
    with torch.inference_mode(False):
        return _Tables(
            torch.tensor(ATOM14_RADIUS_ANGSTROM, device=device, dtype=dtype),
            torch.tensor(bounds.lower, device=device, dtype=dtype),
            torch.tensor(bounds.upper, device=device, dtype=dtype),
        )


class PeptideViolations(NamedTuple):
    """Mean excess over the tolerance of each kind, shape (B,)."""

    bond_c_n: Tensor
    angle_ca_c_n: Tensor
    angle_c_n_ca: Tensor


def _excess(value: Tensor, ideal: Tensor | float, stddev: Tensor | float, mask: Tensor) -> Tensor:
    error = torch.sqrt(_EPS_BOND + (value - ideal).square())
    return masked_mean(torch.relu(error - TOLERANCE_FACTOR * stddev), mask, (1,), _EPS_BOND)


def peptide_violations(
    positions: Tensor,
    exists: Tensor,
    residue_index: Tensor,
    aatype: Tensor,
    ca_c_n_stddev: float = PEPTIDE_COS_CA_C_N[1],
) -> PeptideViolations:
    """Length of the bond between neighbouring residues, and cosines of the angles at its ends.

    Eq. 44 and 45. Pairs of rows whose residue index does not rise by one are left out.

    Parameters
    ----------
    positions : Tensor, shape (B, N, 14, 3)
    exists : Tensor, shape (B, N, 14)
    residue_index, aatype : Tensor, shape (B, N), int64
    ca_c_n_stddev : float
        Standard deviation of the cosine of the CA-C-N angle.
    """
    ca, c = positions[:, :-1, _CA], positions[:, :-1, _C]
    next_n, next_ca = positions[:, 1:, _N], positions[:, 1:, _CA]
    bonded = exists[:, :-1, _C] * exists[:, 1:, _N] * (residue_index.diff(dim=1) == 1)

    def direction(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        length = torch.sqrt(_EPS_BOND + (end - start).square().sum(-1))
        return (end - start) / length[..., None], length

    c_to_n, length = direction(c, next_n)
    c_to_ca, _ = direction(c, ca)
    n_to_ca, _ = direction(next_n, next_ca)
    before_proline = (aatype[:, 1:] == _PROLINE).to(positions.dtype)

    def by_next(values: tuple[float, float]) -> Tensor:
        return values[0] * (1.0 - before_proline) + values[1] * before_proline

    return PeptideViolations(
        _excess(
            length,
            by_next(PEPTIDE_BOND_LENGTH_ANGSTROM),
            by_next(PEPTIDE_BOND_STDDEV_ANGSTROM),
            bonded,
        ),
        _excess(
            (c_to_ca * c_to_n).sum(-1),
            PEPTIDE_COS_CA_C_N[0],
            ca_c_n_stddev,
            bonded * exists[:, :-1, _CA],
        ),
        _excess((-c_to_n * n_to_ca).sum(-1), *PEPTIDE_COS_C_N_CA, bonded * exists[:, 1:, _CA]),
    )


def clash_sum(positions: Tensor, exists: Tensor, residue_index: Tensor, radius: Tensor) -> Tensor:
    """Sum over the atoms of their overlaps with atoms of other residues beyond the tolerance.

    Eq. 46 between residues. The peptide bond and the sixth atoms of any two residues (the sulphur
    atoms of a disulphide bridge are such; AlphaFold2 does not ask whether both are cysteines) are
    left out.

    Parameters
    ----------
    positions : Tensor, shape (B, N, 14, 3)
    exists : Tensor, shape (B, N, 14)
    residue_index : Tensor, shape (B, N), int64
    radius : Tensor, shape (B, N, 14)
        Å.

    Returns
    -------
    Tensor, shape (B,)
        Å; an overlapping pair counts for both its atoms.
    """
    difference = positions[:, :, None, :, None, :] - positions[:, None, :, None, :, :]
    distance = torch.sqrt(_EPS_DISTANCE + difference.square().sum(-1))  # (B, N, N, 14, 14)
    rises = residue_index[:, None, :] - residue_index[:, :, None]
    mask = (
        exists[:, :, None, :, None]
        * exists[:, None, :, None, :]
        * (rises > 0)[..., None, None]  # each pair once
    )
    slot = torch.arange(exists.shape[-1], device=positions.device)
    is_peptide_bond = (rises == 1)[..., None, None] & (
        (slot == _C)[:, None] & (slot == _N)[None, :]
    )
    is_disulphide = (slot == _SG)[:, None] & (slot == _SG)[None, :]
    mask = mask.masked_fill(is_peptide_bond | is_disulphide, 0.0)
    touching = radius[:, :, None, :, None] + radius[:, None, :, None, :]
    overlap = mask * torch.relu(touching - OVERLAP_TOLERANCE_ANGSTROM - distance)
    return 2.0 * float64_sum(overlap, (1, 2, 3, 4))


def within_residue_sum(positions: Tensor, exists: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Sum over the atoms of the excess of distances inside a residue over their bounds.

    Parameters
    ----------
    positions : Tensor, shape (B, N, 14, 3)
    exists : Tensor, shape (B, N, 14)
    lower, upper : Tensor, shape (B, N, 14, 14)
        Å.

    Returns
    -------
    Tensor, shape (B,)
        Å; as in AlphaFold2 each pair counts twice for each of its atoms.
    """
    difference = positions[:, :, :, None, :] - positions[:, :, None, :, :]
    distance = torch.sqrt(_EPS_DISTANCE + difference.square().sum(-1))
    is_other = 1.0 - torch.eye(exists.shape[-1], dtype=exists.dtype, device=exists.device)
    mask = exists[:, :, :, None] * exists[:, :, None, :] * is_other
    excess = mask * (torch.relu(lower - distance) + torch.relu(distance - upper))
    return 2.0 * float64_sum(excess, (1, 2, 3))


def violation_loss(
    positions: Tensor,
    exists: Tensor,
    residue_index: Tensor,
    aatype: Tensor,
    ca_c_n_stddev: float = PEPTIDE_COS_CA_C_N[1],
) -> Tensor:
    """Sum of the peptide terms and the mean an atom of all clashes (eq. 47).

    Parameters
    ----------
    positions : Tensor, shape (B, N, 14, 3)
        Final predicted positions, Å.
    exists : Tensor, shape (B, N, 14)
        1 where the residue type has the atom; the truth plays no part.
    residue_index, aatype : Tensor, shape (B, N), int64
    ca_c_n_stddev : float
        Standard deviation of the cosine of the CA-C-N angle.

    Returns
    -------
    Tensor, shape (B,)
    """
    tables = clash_tables(positions.device, positions.dtype)
    peptide = peptide_violations(positions, exists, residue_index, aatype, ca_c_n_stddev)
    clash = clash_sum(positions, exists, residue_index, tables.radius[aatype])
    within = within_residue_sum(positions, exists, tables.lower[aatype], tables.upper[aatype])
    per_atom = (clash + within) / (_EPS_BOND + float64_sum(exists, (1, 2)))
    return peptide.bond_c_n + peptide.angle_ca_c_n + peptide.angle_c_n_ca + per_atom
