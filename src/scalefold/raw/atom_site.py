"""Atom records of an mmCIF file, and their atom37 slots."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import gemmi
import numpy as np
from numpy.typing import NDArray

from scalefold.chem.residues import ATOM37, ATOM37_INDEX
from scalefold.errors import InputError

ABSENT: Final = ("?", ".", "")
"""What mmCIF writes for an absent value."""

# Atom names may be written bare or in either kind of quotes.
_SLOT: Final[dict[str, int]] = {
    quoted: slot for slot, name in enumerate(ATOM37) for quoted in (name, f'"{name}"', f"'{name}'")
}
_CD, _NH1, _NH2 = (ATOM37_INDEX[name] for name in ("CD", "NH1", "NH2"))


@dataclass(frozen=True, eq=False)
class AtomTable:
    """The polymer atoms of the first model, as columns of the file's texts.

    Parameters
    ----------
    rows_by_chain
        label_asym_id -> rows of its polymer atoms.
    auth_asym_id, residue_name, sequence_number, atom_name, occupancy
        One text a row; ``occupancy`` is empty if the file has none.
    xyz
        Three columns of coordinates, Å.
    """

    rows_by_chain: dict[str, list[int]]
    auth_asym_id: list[str]
    residue_name: list[str]
    sequence_number: list[str]
    atom_name: list[str]
    occupancy: list[str]
    xyz: tuple[list[str], list[str], list[str]]

    @staticmethod
    def read(block: gemmi.cif.Block, source: str) -> AtomTable:
        """Read ``_atom_site``; ``source`` names the file in errors (:class:`InputError`)."""
        tags = [
            "label_asym_id",
            "auth_asym_id",
            "label_comp_id",
            "label_seq_id",
            "label_atom_id",
            "Cartn_x",
            "Cartn_y",
            "Cartn_z",
            "?occupancy",
            "?pdbx_PDB_model_num",
        ]
        table = block.find("_atom_site.", tags)
        if len(table) == 0:
            raise InputError(
                f"{source}: _atom_site is absent, empty or lacks one of the items "
                f"{', '.join(tag for tag in tags if tag[0] != '?')}. Use the archive's own "
                "mmCIF file."
            )
        columns = [list(table.column(i)) if table.has_column(i) else [] for i in range(len(tags))]
        label, auth, residue, number, atom, x, y, z, occupancy, model = columns
        rows_by_chain: dict[str, list[int]] = {}
        for row, name in enumerate(label):
            if number[row] in ABSENT or (model and model[row] != model[0]):
                continue
            rows_by_chain.setdefault(gemmi.cif.as_string(name), []).append(row)
        auth = [gemmi.cif.as_string(name) for name in auth]
        return AtomTable(rows_by_chain, auth, residue, number, atom, occupancy, (x, y, z))

    def place(
        self, rows: list[int], residues: dict[int, str]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Put a chain's atoms into their atom37 slots: positions [N, 37, 3] Å, mask [N, 37]."""
        index = {str(number): i for i, number in enumerate(residues)}
        names = list(residues.values())
        positions = np.zeros((len(names), len(ATOM37), 3), np.float32)
        atom_mask = np.zeros((len(names), len(ATOM37)), bool)
        best: dict[tuple[int, int], float] = {}
        x, y, z = self.xyz
        for row in rows:
            i = index.get(self.sequence_number[row])
            # An alternative monomer's atoms must not end in the chosen monomer's residue.
            if i is None or gemmi.cif.as_string(self.residue_name[row]) != names[i]:
                continue
            slot = _SLOT.get(self.atom_name[row])
            if slot is None:
                if names[i] != "MSE" or gemmi.cif.as_string(self.atom_name[row]) != "SE":
                    continue
                slot = ATOM37_INDEX["SD"]
            occupancy = gemmi.cif.as_number(self.occupancy[row], 0.0) if self.occupancy else 1.0
            if occupancy <= best.get((i, slot), -math.inf):
                continue
            xyz = [gemmi.cif.as_number(axis[row]) for axis in (x, y, z)]
            if not all(map(math.isfinite, xyz)):
                continue
            best[i, slot] = occupancy
            positions[i, slot] = xyz
            atom_mask[i, slot] = True
        _order_arginine_nitrogens(positions, atom_mask, names)
        return positions, atom_mask


def _order_arginine_nitrogens(
    positions: NDArray[np.float32], atom_mask: NDArray[np.bool_], names: list[str]
) -> None:
    """Swap NH1 and NH2, in place, where NH1 is the farther from CD (cis is NH1 by convention)."""
    complete = atom_mask[:, [_CD, _NH1, _NH2]].all(axis=1) & (np.array(names) == "ARG")
    to_first = np.linalg.norm(positions[:, _NH1] - positions[:, _CD], axis=-1)
    to_second = np.linalg.norm(positions[:, _NH2] - positions[:, _CD], axis=-1)
    swap = np.flatnonzero(complete & (to_first > to_second))
    positions[swap[:, None], [_NH1, _NH2]] = positions[swap[:, None], [_NH2, _NH1]]
