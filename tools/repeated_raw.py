"""Make a raw folder of a few public files many times over, to measure how fast they are packed.

    python -m tools.repeated_raw FOLDER MIRROR... --copies 24

Each copy has entries of other names, and a bucket to itself: its alignments are read anew. Entries
without a release date are left out, since the MLPerf reference refuses them.
``FOLDER`` then has what ``python -m tools.bench_data pack FOLDER/raw -c FOLDER/config.yaml`` takes.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from string import ascii_lowercase, digits

import yaml

from scalefold.raw.chain_key import entry_of
from scalefold.raw.chains import CHAIN_COLUMNS
from scalefold.raw.outline import Outline, read_outline
from scalefold.raw.raw_folder import alignment_folder, mmcif_path
from scalefold.raw.table import write_table
from scalefold.shards.buckets import bucket_of


def repeat(mirrors: Sequence[Path], folder: Path, copies: int) -> None:
    """Write raw files, list of chains and configuration of so many copies of all entries."""
    entries: dict[str, tuple[Path, Outline]] = {}
    for path in (path for mirror in mirrors for path in sorted(mirror.rglob("*.cif.gz"))):
        outline = read_outline(path)
        if outline.release_date is not None:
            entries.setdefault(outline.entry_id, (path, outline))
    alignments: dict[str, list[Path]] = defaultdict(list)
    for path in (path for mirror in mirrors for path in sorted(mirror.rglob("*/a3m/*.a3m"))):
        alignments[path.parents[1].name].append(path)
    names: dict[int, list[str]] = defaultdict(list)
    for letters in product(digits, *[digits + ascii_lowercase] * 3):
        names[bucket_of("".join(letters), copies)].append("".join(letters))
    raw, rows, used = folder / "raw", [], set()
    for copy in range(copies):
        for name, (path, outline) in zip(names[copy], entries.values(), strict=False):
            _write_renamed(path, outline.entry_id, name, mmcif_path(raw, name))
            for chain in outline.chains:
                key = f"{name}{chain.chain_key.removeprefix(entry_of(chain.chain_key))}"
                files = alignments[chain.chain_key]
                used |= {file.stem for file in files}
                rows.append((key, "train" if files else "template", ""))
                for file in files:
                    target = alignment_folder(raw, key) / "a3m" / file.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, target)
    write_table(folder / "chains.tsv", CHAIN_COLUMNS, sorted(rows))
    data = {
        "chains": str(folder / "chains.tsv"),
        "mirrors": {"mmcif": ["unused"], "alignments": ["unused"]},
        "alignments": sorted(used),
        "template_hits": None,
        "buckets": copies,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump({"data": data}))


def _write_renamed(source: Path, entry_id: str, name: str, target: Path) -> None:
    """Copy a structure whose entry has another name, in all of its categories."""
    text = gzip.decompress(source.read_bytes()).decode()
    renamed = re.sub(rf"\b{re.escape(entry_id)}\b", name.upper(), text, flags=re.IGNORECASE)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(renamed.encode()))


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("mirrors", type=Path, nargs="+")
    parser.add_argument("--copies", type=int, default=24)
    given = parser.parse_args()
    repeat(given.mirrors, given.folder, given.copies)


if __name__ == "__main__":
    main()
