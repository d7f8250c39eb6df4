"""Torsion angles of a chain as (sin, cos) (Suppl. sec. 1.8.1, Table 2).

Legend: N residues; leading dimensions may be added. Order: omega, phi, psi, chi1-4; omega and phi
belong to the residue after the peptide bond, psi is that of the O atom (half a turn from the
customary one's nitrogen). Computed in float64.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalefold.chem.residues import (
    ATOM37_MASK,
    CA,
    CHI_ATOMS,
    CHI_MASK,
    CHI_PI_PERIODIC,
    UNKNOWN,
    C,
    N,
    O,
)
from scalefold.features.constants import on_device, per_residue
from scalefold.geometry.rigid import Rigid


class Torsions(NamedTuple):
    """Torsion angles.

    Attributes
    ----------
    sin_cos : Tensor, shape (..., N, 7, 2), float32
    alternative_sin_cos : Tensor, shape (..., N, 7, 2), float32
        Under the alternative naming of 180°-symmetric groups.
    mask : Tensor, shape (..., N, 7), float32
        1 where the angle exists and its four atoms are observed.
    """

    sin_cos: Tensor
    alternative_sin_cos: Tensor
    mask: Tensor


def _tables() -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    atoms = np.empty((21, 7, 4), np.int64)
    own = ATOM37_MASK.shape[1]  # first slot of the residue's own atoms
    atoms[:, 0] = CA, C, own + N, own + CA
    atoms[:, 1] = C, own + N, own + CA, own + C
    atoms[:, 2] = own + N, own + CA, own + C, own + O
    atoms[:, 3:] = own + CHI_ATOMS
    exists = np.ones((21, 7), np.float32)
    exists[:, 3:] = CHI_MASK
    return atoms, exists


_TORSION_ATOMS, _TORSION_EXISTS = _tables()

# O is opposite to the next residue's N, by which psi is defined.
_SIGN: Final = np.array([1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0])

_MIRROR: Final = np.concatenate([np.ones((21, 3)), 1.0 - 2.0 * CHI_PI_PERIODIC], 1)


def torsion_angles(aatype: Tensor, positions: Tensor, mask: Tensor) -> Torsions:
    """Measure all torsion angles.

    Parameters
    ----------
    aatype : Tensor, shape (..., N), int64
        0-21; gaps count as unknown residues.
    positions : Tensor, shape (..., N, 37, 3)
        Å. Neighbours are taken to be bonded, as AlphaFold2 does.
    mask : Tensor, shape (..., N, 37)
        1 where the atom is observed.
    """
    aatype = aatype.clamp(max=UNKNOWN)
    # Atoms of the residue before come first, then the residue's own: _TORSION_ATOMS counts so.
    positions, mask = _with_previous(positions.double(), -3), _with_previous(mask, -2)
    atoms = per_residue(_TORSION_ATOMS, aatype)
    flat = atoms.flatten(-2)
    points = positions.gather(-2, flat[..., None].expand(*flat.shape, 3)).unflatten(-2, (7, 4))
    observed = mask.gather(-1, flat).unflatten(-1, (7, 4)).prod(-1)
    observed = observed * per_residue(_TORSION_EXISTS, aatype)

    first, second, third, fourth = points.unbind(-2)
    frame = Rigid.from_three_points(second, third, first)
    _, cos, sin = frame.invert_apply(fourth).unbind(-1)
    sin_cos = torch.stack([sin, cos], -1)
    sin_cos = sin_cos / torch.sqrt((sin_cos * sin_cos).sum(-1, keepdim=True) + 1e-8)
    sin_cos = sin_cos * on_device(_SIGN, positions.device)[:, None]
    mirror = per_residue(_MIRROR, aatype)
    return Torsions(sin_cos.float(), (sin_cos * mirror[..., None]).float(), observed)


def _with_previous(atoms: Tensor, residue_dim: int) -> Tensor:
    """Put the atoms of the residue before each residue's own; zeros before the first residue."""
    before = atoms.roll(1, residue_dim)
    before.select(residue_dim, 0).zero_()
    return torch.cat([before, atoms], residue_dim + 1)
