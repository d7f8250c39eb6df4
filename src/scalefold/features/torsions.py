"""Torsion angles of a chain as (sin, cos) (Suppl. sec. 1.8.1, Table 2).

Legend: N residues; leading dimensions may be added. Order: omega, phi, psi, chi1-4; omega and phi
belong to the residue after the peptide bond, psi is that of the O atom (half a turn from the
customary one's nitrogen). Computed in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scalefold.chem.residues import CA, CHI_ATOMS, CHI_MASK, CHI_PI_PERIODIC, UNKNOWN, C, N, O
from scalefold.features.atoms import per_residue
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
    positions = positions.double()
    before, before_mask = torch.zeros_like(positions), torch.zeros_like(mask)
    before[..., 1:, :, :], before_mask[..., 1:, :] = positions[..., :-1, :, :], mask[..., :-1, :]

    # A torsion's atoms: taken from the residue (True) or from the one before it.
    backbone = (
        ((CA, False), (C, False), (N, True), (CA, True)),
        ((C, False), (N, True), (CA, True), (C, True)),
        ((N, True), (CA, True), (C, True), (O, True)),
    )
    chi_atoms = per_residue(CHI_ATOMS, aatype)
    shape = (*chi_atoms.shape[:-2], 16)
    flat = chi_atoms.reshape(shape)
    chi_points = positions.gather(-2, flat[..., None].expand(*shape, 3))
    points = torch.cat(
        [
            torch.stack(
                [
                    torch.stack(
                        [(positions if here else before)[..., a, :] for a, here in torsion], -2
                    )
                    for torsion in backbone
                ],
                -3,
            ),
            chi_points.unflatten(-2, (4, 4)),
        ],
        -3,
    )
    observed = torch.cat(
        [
            torch.stack(
                [
                    torch.stack(
                        [(mask if here else before_mask)[..., a] for a, here in torsion], -1
                    ).prod(-1)
                    for torsion in backbone
                ],
                -1,
            ),
            mask.gather(-1, flat).unflatten(-1, (4, 4)).prod(-1) * per_residue(CHI_MASK, aatype),
        ],
        -1,
    )

    first, second, third, fourth = points.unbind(-2)
    frame = Rigid.from_three_points(second, third, first)
    _, cos, sin = frame.invert_apply(fourth).unbind(-1)
    sin_cos = torch.stack([sin, cos], -1)
    sin_cos = sin_cos / torch.sqrt((sin_cos * sin_cos).sum(-1, keepdim=True) + 1e-8)
    # O is opposite to the next residue's N, by which psi is defined.
    sign = sin_cos.new_tensor([1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0])
    sin_cos = sin_cos * sign[:, None]
    mirror = torch.ones_like(observed, dtype=torch.float64)
    mirror[..., 3:] -= 2.0 * per_residue(CHI_PI_PERIODIC, aatype)
    return Torsions(sin_cos.float(), (sin_cos * mirror[..., None]).float(), observed)
