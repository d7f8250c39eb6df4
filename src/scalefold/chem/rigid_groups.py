"""Rigid groups of each residue type: the frames that torsion angles rotate (Suppl. sec. 1.8).

Group 0 is the backbone (N, CA, C; origin CA, C on the x axis, N in the xy plane), 1 omega, 2 phi, 3
psi, 4-7 chi1-chi4. Each group's default frame (all torsions 0) is given relative to its parent
group: omega, phi, psi and chi1 from the backbone, chi(n) from chi(n-1).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from scalefold.chem.residues import (
    ATOM14,
    ATOM14_LOCAL_POSITION,
    ATOM37,
    ATOM37_INDEX,
    CHI_ATOMS,
    CHI_MASK,
    CHI_PI_PERIODIC,
    NUM_RESTYPES,
)

NUM_GROUPS: Final = 8


def _frame(x_axis: NDArray, xy_plane: NDArray, origin: NDArray) -> NDArray[np.float32]:
    """Return a 4x4 transform with the given x axis and origin; ``xy_plane`` fixes the y axis."""
    e0 = x_axis / np.linalg.norm(x_axis)
    e1 = xy_plane - e0 * np.dot(e0, xy_plane)
    e1 = e1 / np.linalg.norm(e1)
    frame = np.eye(4)
    frame[:3, :3] = np.stack([e0, e1, np.cross(e0, e1)], axis=1)
    frame[:3, 3] = origin
    return frame.astype(np.float32)


def _default_frames() -> NDArray[np.float32]:
    frames = np.zeros((21, NUM_GROUPS, 4, 4), np.float32)
    # Groups that do not exist (chi angles of Gly, all groups of X) stay zero, as in AlphaFold2.
    frames[:NUM_RESTYPES, :4] = np.eye(4, dtype=np.float32)
    for i in range(NUM_RESTYPES):
        # float64 arithmetic on the tabulated (3 decimals) positions
        at = {
            name: ATOM14_LOCAL_POSITION[i, j].astype(np.float64).round(3)
            for j, name in enumerate(ATOM14[i])
        }
        frames[i, 2] = _frame(at["N"] - at["CA"], np.array([1.0, 0.0, 0.0]), at["N"])
        frames[i, 3] = _frame(at["C"] - at["CA"], at["CA"] - at["N"], at["C"])
        for chi in range(int(CHI_MASK[i].sum())):
            first, second, axis_end, _ = (at[ATOM37[a]] for a in CHI_ATOMS[i, chi])
            if chi == 0:
                frames[i, 4] = _frame(axis_end - second, first - second, axis_end)
            else:
                # positions are already in the previous chi's frame, whose origin is the axis start
                frames[i, 4 + chi] = _frame(axis_end, np.array([-1.0, 0.0, 0.0]), axis_end)
    return frames


DEFAULT_FRAMES: Final = _default_frames()
"""[21, 8, 4, 4] frame of each rigid group in the frame of its parent group."""


def _group_atoms() -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    atoms = np.zeros((21, NUM_GROUPS, 3), np.int64)
    mask = np.zeros((21, NUM_GROUPS), np.float32)
    ambiguous = np.zeros((21, NUM_GROUPS), np.float32)
    backbone = [ATOM37_INDEX[name] for name in ("C", "CA", "N")]
    psi = [ATOM37_INDEX[name] for name in ("CA", "C", "O")]
    # X too: an unknown residue whose backbone is observed has a backbone frame
    atoms[:, 0], atoms[:, 3] = backbone, psi
    mask[:, 0] = mask[:, 3] = 1.0
    atoms[:, 4:] = CHI_ATOMS[:, :, 1:]
    mask[:, 4:] = CHI_MASK
    # A 180° rotation of the last chi of Asp, Glu, Phe, Tyr gives the alternative naming.
    ambiguous[:, 4:] = CHI_PI_PERIODIC
    return atoms, mask, ambiguous


GROUP_ATOMS, GROUP_MASK, GROUP_IS_AMBIGUOUS = _group_atoms()
"""Atom37 slots of the three atoms that define a group's frame (on the negative x axis, origin, xy
plane) [21, 8, 3]; whether the group exists [21, 8]; whether its naming is ambiguous [21, 8]."""
