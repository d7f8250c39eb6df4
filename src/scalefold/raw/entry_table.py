"""Show the chains of a structure and all of their names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from scalefold.raw.chain_key import is_chain_key
from scalefold.raw.outline import Outline, read_outline


def describe_entry(path: Path, console: Console) -> None:
    """Print what a structure is, and the names and sequences of its protein chains.

    Raises as `read_outline`.
    """
    outline = read_outline(path)
    console.print(
        f"{path}: entry {outline.entry_id}, {outline.method or 'method unknown'}, "
        f"{'no resolution' if outline.resolution is None else f'{outline.resolution:g} Å'}, "
        f"{f'released {outline.release_date}' if outline.release_date else 'release date unknown'}",
        soft_wrap=True,
        highlight=False,
    )
    table = Table(title=f"protein chains, {len(outline.chains)}", title_justify="left")
    for column in ("chain_key", "author", "label", "entity", "residues", "unknown (X)"):
        table.add_column(column, no_wrap=True)
    for chain in outline.chains:
        names = (chain.chain_key, chain.auth_asym_id, chain.label_asym_id, chain.entity or "")
        counts = (f"{len(chain.sequence):,}", str(chain.sequence.count("X")))
        table.add_row(*names, *counts)
    console.print(table)
    for chain in outline.chains:  # as FASTA, to be copied
        console.print(f">{chain.chain_key}\n{chain.sequence}", soft_wrap=True, highlight=False)
    for problem in _problems(outline):
        console.print(problem, style="yellow", soft_wrap=True)


def _problems(outline: Outline) -> list[str]:
    """Say which chains cannot be listed, and why."""
    counts = Counter(chain.chain_key for chain in outline.chains)
    return [
        f"{key}: {count} protein chains have this author chain, so the entry cannot be used"
        for key, count in counts.items()
        if count > 1
    ] + [
        f"{key}: cannot be listed in data.chains, since its name holds other than letters, digits, "
        "., + and -, or its entry fewer than 4 characters"
        for key in counts
        if not is_chain_key(key)
    ]
