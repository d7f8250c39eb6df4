"""Write the mmCIF text of a BinaryCIF file: the same categories, items and values.

Four of the demo's entries were at hand as BinaryCIF only. Their numbers are stored as fixed-point
decimals (coordinates: 3 decimals), so nothing is lost; trailing zeros and quoting may differ from
the archive's own mmCIF file. Needs biotite and gemmi.

Usage: python demo/bcif_to_cif.py ENTRY.bcif ENTRY.cif
"""

from __future__ import annotations

import sys
from pathlib import Path

import gemmi
import numpy as np
from biotite.structure.io.pdbx import BinaryCIFColumn, BinaryCIFFile

_MASKED = {1: ".", 2: "?"}


def _text(value: object) -> str:
    if isinstance(value, float | np.floating):
        # Five decimals: more than any fixed-point item has, less than a float32 would show.
        return np.format_float_positional(round(float(value), 5), trim="0")
    return str(value)


def _column(column: BinaryCIFColumn) -> list[str]:
    values = column.data.array
    mask = np.zeros(len(values), int) if column.mask is None else column.mask.array
    return [
        _MASKED.get(int(hidden)) or gemmi.cif.quote(_text(value))
        for value, hidden in zip(values, mask, strict=True)
    ]


def main(source: Path, target: Path) -> None:
    """Convert one file."""
    document = gemmi.cif.Document()
    for name, block in BinaryCIFFile.read(source).items():
        text_block = document.add_new_block(name)
        for category, columns in block.items():
            values = {item: _column(column) for item, column in columns.items()}
            text_block.set_mmcif_category(f"_{category}.", values, raw=True)
    target.write_text(document.as_string(), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
