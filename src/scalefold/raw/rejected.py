"""The table of chains that a stage sets aside, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from scalefold.raw.table import read_table, write_table

REJECTED_COLUMNS: Final = ("chain_key", "stage", "reason")


@dataclass(frozen=True)
class Rejected:
    """A chain that a stage sets aside, and why."""

    chain_key: str
    stage: str
    reason: str


def cause_first(message: str) -> str:
    """Return a message that begins with a file or URL so that this stands at its end."""
    place, _, rest = message.partition(": ")
    return f"{rest.rstrip('.')} ({place})" if rest and "/" in place else message


def read_rejected(path: Path) -> list[Rejected]:
    """Read a table of rejected chains; a missing file is an empty table."""
    if not path.exists():
        return []
    return [Rejected(*fields) for _, fields in read_table(path, REJECTED_COLUMNS)]


def write_rejected(path: Path, rejected: Iterable[Rejected]) -> None:
    """Write a table of rejected chains, atomically, sorted by chain and stage."""
    ordered = sorted(rejected, key=lambda r: (r.chain_key, r.stage))
    write_table(path, REJECTED_COLUMNS, map(astuple, ordered))
