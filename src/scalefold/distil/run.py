"""A shard folder of experimental and predicted structures, from one of experimental structures.

Shards of the first are linked, not copied: they may be large. Links are relative, so that a run may
be moved as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from scalefold.config.schema import Config
from scalefold.distil.candidates import TABLE_COLUMNS, Verdict, fates, read_candidates
from scalefold.distil.pack import Bucket, pack_bucket
from scalefold.errors import InputError
from scalefold.io.atomic import atomic_file, make_folder
from scalefold.progress import LiveLine
from scalefold.raw.table import table_text
from scalefold.shards.manifest import QUERY_ALONE, Manifest
from scalefold.shards.pack import in_processes
from scalefold.shards.schema import INDEX_FILE, MANIFEST_FILE, SCHEMA_VERSION, SCHEMAS, bucket_file
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.writer import ShardFacts, write_shard

TABLE_FILE: Final = "distilled.tsv"
CHAINS: Final = "chains, distilled"
"""Key of their number in `Manifest.counts`."""
BUCKET_SIZE: Final = 500
"""Candidates of a bucket: some GB of alignments."""


def distil(
    folders: Sequence[Path],
    config: Config,
    shards: Path,
    out: Path,
    *,
    alignments: Path | None,
    jobs: int = 1,
    console: Console | None = None,
) -> tuple[Manifest, list[Verdict]]:
    """Pack the predictions that are kept beside the chains of a shard folder.

    ``out`` becomes a shard folder like any other. Its table ``distilled.tsv`` says what became of
    each prediction. The result does not depend on how predictions are divided among folders.

    Parameters
    ----------
    folders : sequence of Path
        What ``scalefold predict --out`` wrote.
    config : Config
        ``distillation``, ``features.distilled`` and ``shards`` are used.
    shards : Path
        Complete, and of experimental structures alone.
    out : Path
        New, empty, or what an earlier call wrote.
    alignments : Path or None
        What the structures were predicted from; None: from the sequences alone.

    Returns
    -------
    Manifest
        Of the new folder.
    list of Verdict
        Of all predictions, by name.

    Raises
    ------
    InputError
        A folder cannot be used, or no prediction is kept.
    """
    experimental = Manifest.read(shards)
    index = _experimental_index(shards, experimental)
    candidates = read_candidates(folders)
    _open(out, shards)
    first = 1 + max(_buckets(experimental), default=-1)
    buckets = [
        (first + number, candidates[start : start + BUCKET_SIZE])
        for number, start in enumerate(range(0, len(candidates), BUCKET_SIZE))
    ]
    work = partial(pack_bucket, config=config, alignments=alignments, shards=shards, out=out)
    packed: list[Bucket] = []
    line = LiveLine("distilling", len(candidates), console, seconds_between_lines=30)
    with in_processes(work, buckets, jobs) as results, line:
        for bucket in results:
            packed.append(bucket)
            line.show(sum(len(one.verdicts) for one in packed), "")
    verdicts = [verdict for bucket in packed for verdict in bucket.verdicts]
    table = _write_table(out / TABLE_FILE, verdicts)
    if not any(bucket.rows for bucket in packed):
        raise InputError(
            f"none of {len(candidates)} predictions is kept ({fates(verdicts)}). "
            f"{out / TABLE_FILE} says why; lower the limits in section distillation, or predict "
            "other sequences or with better weights"
        )
    _link(shards, experimental, out)
    return _complete(out, experimental, index, packed, table), verdicts


def _experimental_index(shards: Path, manifest: Manifest) -> pa.Table:
    if manifest.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{shards}: shards of an earlier version ({manifest.schema_version}), to which none "
            f"of this one ({SCHEMA_VERSION}) can be added. Pack them again into another folder"
        )
    manifest.check_bytes(shards, INDEX_FILE)
    index = ShardFile(shards / INDEX_FILE, "index").table()
    if pc.any(pc.equal(index["origin"], "distilled")).as_py():
        raise InputError(
            f"{shards}: has predicted structures already. Give the shards that these were added to"
        )
    return index


def _open(out: Path, shards: Path) -> None:
    """Make the folder one without a manifest; shards that are there are replaced by name."""
    make_folder(out)
    if out.resolve() == shards.resolve():
        raise InputError(f"{out}: is the folder of the experimental chains. Choose another one")
    if (out / MANIFEST_FILE).exists() and not (out / TABLE_FILE).exists():
        raise InputError(f"{out}: has other shards. Choose another folder")
    (out / MANIFEST_FILE).unlink(missing_ok=True)


def _buckets(manifest: Manifest) -> list[int]:
    """Numbers of the buckets of a folder."""
    places = (bucket_file(facts.file) for facts in manifest.files)
    return [place[1] for place in places if place is not None]


def _link(shards: Path, manifest: Manifest, out: Path) -> None:
    """Link the files of the manifest, and the summaries beside them."""
    folder = Path(os.path.relpath(shards.resolve(), out.resolve()))
    files = {facts.file for facts in manifest.files} - {INDEX_FILE}
    summaries = {Path(file).with_suffix(".json").name for file in files}
    for name in sorted(files | {name for name in summaries if (shards / name).is_file()}):
        link = out / name
        link.unlink(missing_ok=True)
        link.symlink_to(folder / name)


def _complete(
    out: Path,
    experimental: Manifest,
    index: pa.Table,
    packed: Sequence[Bucket],
    table: ShardFacts,
) -> Manifest:
    """Write the index and, last, the manifest."""
    rows: list[dict[str, Any]] = [row for bucket in packed for row in bucket.rows]
    added = pa.Table.from_pylist(rows, schema=SCHEMAS["index"])
    both = pa.concat_tables([index, added]).sort_by("chain_key").combine_chunks()
    with write_shard(out / INDEX_FILE, "index") as shard:
        for batch in both.to_batches():
            shard.add_batch(batch)
    files = [facts for facts in experimental.files if facts.file != INDEX_FILE]
    files += [shard.facts, table, *(facts for bucket in packed for facts in bucket.files)]
    counts = dict(experimental.counts)
    for key, number in (
        ("chains, train", len(rows)),
        ("alignments", len(rows)),
        (CHAINS, len(rows)),
        (QUERY_ALONE, sum(bucket.num_alone for bucket in packed)),
    ):
        if number:
            counts[key] = counts.get(key, 0) + number
    manifest = replace(
        experimental, counts=counts, files=tuple(sorted(files, key=lambda facts: facts.file))
    )
    manifest.write(out)
    return manifest


def _write_table(path: Path, verdicts: Sequence[Verdict]) -> ShardFacts:
    with atomic_file(path) as file:
        text = table_text(TABLE_COLUMNS, (verdict.row() for verdict in verdicts))
        file.write(text.encode())
    return ShardFacts(path.name, file.num_bytes, len(verdicts), file.sha256)
