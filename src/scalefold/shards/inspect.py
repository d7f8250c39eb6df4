"""Show what is in a shard folder, a shard, or one chain, as tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from scalefold.chem.residues import CA, GAP
from scalefold.errors import InputError, first_few
from scalefold.raw.alignment import ROW_SOURCES, Alignment, merge
from scalefold.raw.rejected import read_rejected
from scalefold.shards.audit import audit_table, chain_counts
from scalefold.shards.codec import decode_chain, decode_msa
from scalefold.shards.hit_codec import PackedHits, decode_located
from scalefold.shards.manifest import no_shards
from scalefold.shards.reader import ShardReader
from scalefold.shards.records import ChainRecord, MsaRecord, Sample
from scalefold.shards.schema import REJECTED_FILE
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.summary import rows_left_out

NEFF_IDENTITY = 0.8
NEFF_MAX_ROWS = 2000
MOST_SET_ASIDE = 50
_COLUMNS: Final = {
    "index": ("chain_key", "split", "length", "resolution", "release_date", "cluster_size"),
    "chain": ("chain", "length", "observed residues", "atoms", "date"),
    "msa": ("sequence", "length", "rows", "of"),
    "hits": ("template hits", "best"),
    "templates": ("templates", "best"),
}
"""What is shown of a file, by family."""
_READS: Final = (
    "Inspect reads a shard folder, an .arrow file of it, a structure (.cif, .pdb, .ent, or "
    "gzipped), or an alignment (.a3m, .sto)"
)


def describe_folder(path: Path, console: Console) -> None:
    """Print tables of a shard folder's contents, or of the rows of a single shard file.

    Raises
    ------
    InputError
        There is no such folder or shard, or it cannot be read.
    """
    if path.is_file():
        _describe_file(path, console)
        return
    if path.is_dir() and not any(path.glob("*.arrow")):
        raise InputError(f"{path}: not a shard folder. {_READS}. {no_shards(path)}")
    reader = ShardReader(path)
    manifest = reader.manifest
    facts = _table(f"{path}", "what", "value")
    facts.add_row("schema version", str(manifest.schema_version))
    facts.add_row("configuration (data, shards)", manifest.config_hash)
    source = manifest.source
    facts.add_row("raw files packed", f"{source.files:,} files, {source.bytes:,} bytes")
    facts.add_row("their sha256", source.sha256[:16])
    for name, count in manifest.counts.items():
        facts.add_row(name, f"{count:,}")
    lengths = reader.index["length"].to_numpy()
    facts.add_row("length: shortest, median, longest", _spread(lengths))
    console.print(facts)

    files = _table("files", "file", "rows", "bytes", "sha256")
    for file in manifest.files:
        files.add_row(file.file, f"{file.rows:,}", f"{file.bytes:,}", file.sha256[:16])
    console.print(files)
    console.print(chain_counts(reader).table)
    rejected = read_rejected(path / REJECTED_FILE)
    console.print(audit_table(reader.index, rejected))
    if rejected:
        table = _table("set aside", "chain", "stage", "reason")
        for rejection in rejected[:MOST_SET_ASIDE]:
            table.add_row(rejection.chain_key, rejection.stage, rejection.reason)
        if len(rejected) > MOST_SET_ASIDE:
            more = len(rejected) - MOST_SET_ASIDE
            table.add_row(f"and {more:,} more", "", f"see {path / REJECTED_FILE}")
        console.print(table)


def describe_chain(folder: Path, chain_key: str, console: Console) -> None:
    """Print tables of one chain: structure, alignment, templates.

    Raises
    ------
    InputError
        The folder or the chain is not there, a file is given instead, or a row is damaged.
    """
    if folder.is_file():
        raise InputError(
            f"{folder}: is a file, and --chain shows a chain of a shard folder: scalefold inspect "
            f"{quote(str(folder.parent))} --chain {chain_key}. Without --chain this file is shown"
        )
    reader = ShardReader(folder)
    table = _table(chain_key, "what", "value")
    index = reader.index.filter(
        reader.index["chain_key"].to_numpy(zero_copy_only=False) == chain_key
    )
    if index.num_rows == 0 or index["msa_shard"][0].as_py() is None:
        _add_chain(table, reader.chain(chain_key))
        table.add_row("split", str(index["split"][0]))
        table.add_row("alignment", "none: serves as a template only")
        console.print(table)
        return
    sample = reader.sample(chain_key)
    _add_chain(table, sample.chain)
    table.add_row("split", sample.split)
    table.add_row("training chains in its cluster", str(sample.cluster_size))
    _add_msa(table, sample.msa)
    sources = np.bincount(sample.msa.row_source, minlength=1)
    counts = [f"{ROW_SOURCES[i]} {n:,}" for i, n in enumerate(sources) if n]
    table.add_row("rows by source", ", ".join(counts))
    place = index.select(["msa_shard", "msa_row"]).to_pylist()[0]
    if cut := rows_left_out(folder, place["msa_shard"], place["msa_row"]):
        by_source = ", ".join(f"{source} {number:,}" for source, number in cut.items())
        table.add_row("rows left out (shards.max_rows)", by_source)
    others = [key for key in _users(reader.index, index) if key != chain_key]
    if others:
        table.add_row("alignment shared with", first_few(others, 8))
    console.print(table)
    console.print(_templates(sample))


def describe_alignment(path: Path, query: str, alignment: Alignment, console: Console) -> None:
    """Print a table of an alignment; of its rows, those count that differ."""
    table = _table(str(path), "what", "value")
    table.add_row("query", query)
    table.add_row("columns", f"{len(query):,}")
    _add_msa(table, MsaRecord.of(b"", alignment, merge([alignment])))
    console.print(table)


def effective_sequences(msa: NDArray[np.uint8]) -> float:
    """Return a simple number of effective sequences of the first ``NEFF_MAX_ROWS`` rows.

    Each row counts one over the number of rows (itself included) that are at least 80 % identical
    to it over the columns where it has a residue.

    Parameters
    ----------
    msa
        ``[R, N]`` uint8.
    """
    rows = msa[:NEFF_MAX_ROWS]
    similar = np.zeros(len(rows))
    residues = rows != GAP
    for i, row in enumerate(rows):
        same = ((rows == row) & residues[i]).sum(axis=1)
        similar[i] = (same >= NEFF_IDENTITY * residues[i].sum()).sum()
    return float((1.0 / similar).sum())


def _describe_file(path: Path, console: Console) -> None:
    family = path.name.partition("-")[0].removesuffix(".arrow")
    if family not in _COLUMNS or path.suffix != ".arrow":
        fix = (
            f"Unpack it: gunzip {quote(str(path))}" if path.suffix == ".gz" else "Name another file"
        )
        raise InputError(f"{path}: no file for inspect, by its name. {_READS}. {fix}")
    file, columns = ShardFile(path, family), _COLUMNS[family]
    if family == "index":
        table = _table(str(path), *columns)
        for facts in file.table().select(columns).to_pylist():
            table.add_row(*map(_text, facts.values()))
    else:
        table = _table(str(path), "row", *columns)
        for row in range(file.num_rows):
            table.add_row(str(row), *_cells(family, file.row(row)))
    console.print(table)


def _cells(family: str, row: pa.RecordBatch) -> Iterable[str]:
    """Cells of a shard's row, by `_COLUMNS`."""
    if family == "chain":
        chain = decode_chain(row)
        observed, atoms = chain.atom_mask.any(axis=1).sum(), chain.atom_mask.sum()
        return chain.chain_key, *map(_text, (len(chain), observed, atoms, chain.release_date))
    if family == "msa":
        msa = decode_msa(row)
        depth, length = msa.msa.shape
        return msa.seq_id.hex()[:12], *map(str, (length, depth, msa.num_seq_full))
    if family == "hits":
        keys = PackedHits(row).chain_keys
    else:
        keys = [one.chain_key for one in decode_located(row).values()]
    return f"{len(keys):,}", ", ".join(keys[:4])


def _add_chain(table: Table, chain: ChainRecord) -> None:
    observed = chain.atom_mask.any(axis=1)
    missing = np.flatnonzero(~observed)
    table.add_row("label / author chain", f"{chain.label_asym_id} / {chain.auth_asym_id}")
    table.add_row("method", chain.method)
    table.add_row("origin", chain.origin)
    table.add_row("resolution, Å", _text(chain.resolution))
    table.add_row("release date", _text(chain.release_date))
    table.add_row("cluster", _text(chain.cluster_id))
    table.add_row("sequence", chain.sequence)
    table.add_row("sequence, sha256", chain.seq_id.hex()[:16])
    table.add_row("residues", str(len(chain)))
    table.add_row("residues without atoms", f"{len(missing)} {_ranges(missing)}".strip())
    table.add_row("residues with Cα", str(int(chain.atom_mask[:, CA].sum())))
    table.add_row("observed atoms", str(int(chain.atom_mask.sum())))
    table.add_row("unknown residues (X)", str(chain.sequence.count("X")))


def _add_msa(table: Table, msa: MsaRecord) -> None:
    depth = len(msa.msa)
    table.add_row("alignment rows", f"{depth:,} of {msa.num_seq_full:,}")
    neff = effective_sequences(msa.msa)
    of_first = f" (of the first {NEFF_MAX_ROWS:,} rows)" if depth > NEFF_MAX_ROWS else ""
    table.add_row(f"effective rows at {NEFF_IDENTITY:.0%} identity", f"{neff:.1f}{of_first}")
    table.add_row("gaps", f"{(msa.msa == GAP).mean():.1%}")
    deleted = int(msa.del_val.sum(dtype=np.int64))
    table.add_row("deletions", f"{deleted:,} residues at {len(msa.del_col):,} places")
    covered = (msa.msa != GAP).sum(axis=0)
    table.add_row("rows per column: least, median, most", _spread(covered))


def _users(index: pa.Table, chain: pa.Table) -> list[str]:
    """Return the keys of the chains of ``index`` that use the alignment of the one in ``chain``."""
    is_user = pc.and_(
        pc.equal(index["msa_shard"], chain["msa_shard"][0]),
        pc.equal(index["msa_row"], chain["msa_row"][0]),
    )
    keys: list[str] = index.filter(is_user)["chain_key"].to_pylist()
    return keys


def _templates(sample: Sample) -> Table:
    table = _table(
        f"{len(sample.templates)} templates (before the margin of dates)",
        "chain",
        "released",
        "sum of probs",
        "probability, %",
        "aligned",
        "with Cα",
        "identical",
    )
    query = sample.chain.aatype
    for hit, chain in sample.templates:
        identical = (query[hit.q_idx] == chain.aatype[hit.t_idx]).mean()
        table.add_row(
            hit.chain_key,
            _text(chain.release_date),
            f"{hit.sum_probs:.1f}",
            f"{hit.prob:.1f}",
            str(len(hit.q_idx)),
            str(int(chain.atom_mask[hit.t_idx, CA].sum())),
            f"{identical:.0%}",
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _text(value: object) -> str:
    return "unknown" if value is None else str(value)


def _spread(values: NDArray[np.integer]) -> str:
    return f"{values.min():,}, {np.median(values):,.0f}, {values.max():,}"


def _ranges(positions: NDArray[np.intp]) -> str:
    """Return 0-based positions as 1-based ranges, ``(1-4, 9)``."""
    if len(positions) == 0:
        return ""
    runs = np.split(positions + 1, np.flatnonzero(np.diff(positions) > 1) + 1)
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"({', '.join(texts)})"
