"""The manifest of a shard folder: its files, their hashes, and where the data come from."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Final

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from scalefold.config.values import NonNegative
from scalefold.errors import ChecksumError, InputError, UnreadableError
from scalefold.io.atomic import file_sha256, write_bytes
from scalefold.raw.raw_folder import STRUCTURE_SUFFIXES
from scalefold.shards.repack_hint import repack_hint
from scalefold.shards.schema import FORMER_VERSION, MANIFEST_FILE, SCHEMA_VERSION
from scalefold.shards.sealed_json import check_keys, read_sealed, sealed
from scalefold.shards.source_files import RawSnapshot
from scalefold.shards.writer import ShardFacts

QUERY_ALONE: Final = "chains with their query alone"
"""Key of their number in `Manifest.counts`; left out where there is none."""
_RESTORE: Final = "Restore it, or run `scalefold pack` again."
_MOST_LOOKED_AT: Final = 10_000


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Manifest:
    """What a shard folder holds.

    Parameters
    ----------
    config_hash
        See :func:`scalefold.config.identity.packing_hash`.
    counts
        Chains by split, alignments, chains set aside (also those that are templates now, which
        are counted once more), template hits by what became of them.
    files
        All Arrow files and the table of rejected chains, sorted by name.
    """

    schema_version: int
    config_hash: str
    source: RawSnapshot
    counts: dict[str, NonNegative]
    files: tuple[ShardFacts, ...]

    def write(self, folder: Path) -> str:
        """Write ``manifest.json`` and return its SHA-256, which identifies the data."""
        return write_bytes(folder / MANIFEST_FILE, sealed(asdict(self)))

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Read the manifest of a folder.

        Raises
        ------
        InputError
            There is no such folder, or no complete set of shards in it, or one of another version;
            as `ChecksumError` where the manifest is damaged.
        """
        path = folder / MANIFEST_FILE
        if folder.is_file():
            raise InputError(f"{folder}: is a file. Give a shard folder, as {folder.parent} may be")
        if not folder.is_dir():
            raise InputError(
                f"{folder}: no such shard folder. Run `scalefold pack`, or correct the path."
            )
        try:
            tree = read_sealed(path, _RESTORE)
        except FileNotFoundError as error:
            raise InputError(f"{folder}: no {path.name} in it. {no_shards(folder)}") from error
        version = tree.get("schema_version")
        if version not in (SCHEMA_VERSION, FORMER_VERSION):
            raise InputError(
                f"{path}: schema version {version}, this version of scalefold reads "
                f"{FORMER_VERSION} and {SCHEMA_VERSION}. Run `scalefold pack` again, with this "
                "version."
            )
        check_keys(path, tree, [f.name for f in fields(Manifest)], _RESTORE)
        try:
            return _MANIFEST.validate_json(json.dumps(tree), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ascii(".".join(map(str, first["loc"])))
            raise InputError(
                f"{path}: an entry is missing, unknown or of another kind ({key}: "
                f"{first['msg']}). {_RESTORE}"
            ) from error

    @property
    def num_sharing(self) -> int:
        """Number of chains that use the alignment of another chain of the same sequence."""
        # Each alignment was made from the files of one chain, which uses it.
        counts = Counter(self.counts)
        return counts["chains, train"] + counts["chains, validation"] - counts["alignments"]

    def facts(self, file: str) -> ShardFacts | None:
        """Return what the manifest states of a file, ``None`` if it does not know it."""
        return next((facts for facts in self.files if facts.file == file), None)

    def check_bytes(self, folder: Path, file: str) -> None:
        """Compare a file's size and SHA-256 with the manifest's.

        Raises
        ------
        InputError
            The file is missing or cannot be read, or the manifest does not know it; as
            `UnreadableError` where a permission is missing.
        ChecksumError
            They differ.
        """
        path, stated = folder / file, self.facts(file)
        fix = repack_hint(path)
        if stated is None:
            raise InputError(f"{path}: the manifest does not list this file. {fix}")
        try:
            sha256, size = file_sha256(path), path.stat().st_size
        except FileNotFoundError as error:
            raise InputError(f"{path}: listed in the manifest, but not there. {fix}") from error
        except PermissionError as error:
            raise UnreadableError.of(path) from error
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}). {fix}") from error
        if (size, sha256) != (stated.bytes, stated.sha256):
            raise ChecksumError(
                f"{path}: damaged or replaced: {size} bytes, sha256 {sha256}; the manifest states "
                f"{stated.bytes} bytes, sha256 {stated.sha256}. {fix}"
            )


_MANIFEST: Final = TypeAdapter(Manifest)


def data_hash(folder: Path) -> str:
    """SHA-256 of the manifest, which holds the hash of each file: identifies the data."""
    return file_sha256(folder / MANIFEST_FILE)


def is_former(folder: Path) -> bool:
    """Return whether a folder holds complete shards of the former schema version."""
    with contextlib.suppress(InputError):
        return Manifest.read(folder).schema_version == FORMER_VERSION
    return False


def no_shards(folder: Path) -> str:
    """What a folder without a manifest is, or holds, and what to do."""
    below = folder / "shards"
    if (below / MANIFEST_FILE).is_file():
        return f"The shards are in {below}: give that folder."
    if any(folder.glob("*.arrow")):
        return (
            "Its shards are not complete: run `scalefold pack` to its end (of its stages, index "
            "writes that file)."
        )
    if (folder / "mmcif").is_dir():
        return f"It is a raw folder: pack it with `scalefold pack --raw {quote(str(folder))}`."
    for path in islice(folder.rglob("*"), _MOST_LOOKED_AT):
        if path.name.endswith(STRUCTURE_SUFFIXES):
            return (
                f"It holds structures: `scalefold inspect {quote(str(path))}` shows one of them, "
                f"`scalefold chains {quote(str(folder))}` lists the chains of all."
            )
        if path.suffix == ".a3m":
            return f"It holds alignments: `scalefold inspect {quote(str(path))}` shows one of them."
    return "Give the folder that was --out of `scalefold pack`."
