from __future__ import annotations

import io
from pathlib import Path

import gemmi
from rich.console import Console

from scalefold.raw.entry_table import describe_entry


def shown(path: Path) -> str:
    console = Console(file=io.StringIO(), width=300)
    describe_entry(path, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_lists_all_names_of_a_chain(demo: Path) -> None:
    (path,) = demo.rglob("1lcd.cif.gz")
    lines = shown(path).splitlines()
    (line,) = (line for line in lines if line.startswith("│ 1lcd_A"))
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[:4] == ["1lcd_A", "A", "C", "3"]
    title, sequence = lines[lines.index(">1lcd_A") :][:2]  # a record that can be copied
    assert (title, int(cells[4])) == (">1lcd_A", len(sequence))


def test_says_which_entries_cannot_be_used(demo: Path, tmp_path: Path) -> None:
    (path,) = demo.rglob("1aki.cif.gz")
    short = tmp_path / "x.pdb"
    short.write_text(gemmi.read_structure(str(path)).make_pdb_string())
    assert "cannot be listed" in shown(short)
    assert "cannot be" not in shown(path)
