"""The files of rsync mirrors come before all others, with one process for each mirror."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from scalefold.config.mirror_roots import local_folder, rsync_module
from scalefold.fetch.chain_files import RawFile
from scalefold.fetch.mirrors import Downloader
from scalefold.progress import LiveLine


def pull_files(files: Sequence[RawFile], downloader: Downloader, folder: Path) -> None:
    """Fetch missing files from their rsync mirrors, for ``downloader`` to take.

    A mirror is asked for the files that no earlier mirror has. Only folders and other rsync mirrors
    come before one.

    Parameters
    ----------
    downloader
        Its `pulled` is filled.
    folder
        Where the files wait. It stays after an interruption, and the next call resumes from it.

    Raises
    ------
    InputError
        There is no program rsync, or the folder cannot be written.
    """
    missing = [file for file in files if not file.local.exists()]
    for root in filter(rsync_module, dict.fromkeys(r for file in missing for r in file.roots)):
        names = {
            name
            for file in missing
            if root in file.roots and not _is_had_before(file, root, downloader)
            for name in file.remotes
        }
        if not names:
            continue
        with LiveLine("rsync", len(names), seconds_between_lines=30) as line:
            place = folder / hashlib.sha256(root.encode()).hexdigest()[:12]
            downloader.pull(root, sorted(names), place, partial(_advance, line, itertools.count(1)))


def _advance(line: LiveLine, count: Iterator[int]) -> None:
    line.show(next(count), "")


def _is_had_before(file: RawFile, root: str, downloader: Downloader) -> bool:
    """Whether a mirror before ``root`` has a file."""
    for earlier in file.roots[: file.roots.index(root)]:
        pulled = downloader.pulled.get(earlier)
        folder = local_folder(earlier) if pulled is None else pulled.folder
        if folder is not None and any((folder / name).is_file() for name in file.remotes):
            return True
    return False
