"""Write checkpoints whole or not at all, and delete old ones; see `scalefold.checkpoint.read`."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final, cast

import torch

from scalefold.checkpoint.read import (
    FORMAT,
    METADATA_FILE,
    FileFacts,
    Metadata,
    checkpoint_path,
    checkpoints,
    ready_mark,
)
from scalefold.io.atomic import (
    TEMPORARY_MARK,
    atomic_file,
    make_folder,
    sync_folder,
    write_bytes,
)
from scalefold.weights.matching import State

logger = logging.getLogger(__name__)

_FILES: Final = ("weights", "averaged", "training")


def save(
    folder: Path,
    *,
    step: int,
    weights: State,
    averaged: State,
    training: Mapping[str, Any],
    description: Mapping[str, Any],
    confirm: Callable[[], None] = lambda: None,
) -> Path:
    """Write a checkpoint: to a temporary folder, synchronised, renamed, then marked as ready.

    Parameters
    ----------
    training : mapping
        Tensors, numbers, strings and dictionaries of them.
    description : mapping
        The fields of `Metadata` that are not known here.
    confirm : callable
        Called just before the checkpoint appears; raises if it must not.

    Returns
    -------
    Path
        The checkpoint's folder. One that is complete already is left as it is.

    Raises
    ------
    InputError
        If the disk is full or the folder may not be written; earlier checkpoints are intact.
    """
    final = checkpoint_path(folder, step)
    if ready_mark(final).exists():
        return final
    temporary = _temporary(final)
    try:
        make_folder(temporary)
        contents = dict(zip(_FILES, (weights, averaged, dict(training))))
        files = {f"{name}.pt": _write(temporary / f"{name}.pt", contents[name]) for name in _FILES}
        metadata = Metadata(format=FORMAT, step=step, files=files, **description)
        mark = write_bytes(
            temporary / METADATA_FILE, (json.dumps(asdict(metadata), indent=1) + "\n").encode()
        )
        confirm()
        if final.exists():
            logger.warning("%s: replaced; it was never marked as complete", final)
            shutil.rmtree(final)
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder)
    write_bytes(ready_mark(final), f"{mark}\n".encode())
    return final


def prune(folder: Path, keep: int, scheduled: Callable[[int], bool] = lambda step: True) -> None:
    """Delete all complete checkpoints but the ``keep`` newest; 0 keeps all.

    Checkpoints of steps that are not scheduled do not count, and stay only while they are the
    newest. They exist because the training was stopped, and let it go on.
    """
    found = checkpoints(folder)
    regular = [path for path in found if scheduled(int(path.name.removeprefix("step-")))]
    kept = {*regular[-keep:], *found[-1:]} if keep else set(found)
    for path in found:
        if path not in kept:
            ready_mark(path).unlink()  # first: a half-deleted folder must not look complete
            _remove(path.rename(_temporary(path)))


def remove_leftovers(folder: Path) -> None:
    """Delete what an interrupted write or deletion left; only for the holder of the lock."""
    for path in folder.glob(f"step-*{TEMPORARY_MARK}*"):
        logger.info("%s: removed, an interrupted write left it", path)
        _remove(path) if path.is_dir() else path.unlink()


def _temporary(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}{TEMPORARY_MARK}{os.getpid()}")


def _remove(folder: Path) -> None:
    """Delete a temporary folder. If that fails, the training goes on: only disk space is lost.

    NFS refuses while another process of the machine, such as an evaluation, has a file open.
    """
    try:
        shutil.rmtree(folder)
    except OSError as error:
        reason = error.strerror
        logger.warning("%s: not deleted (%s); the next start tries again", folder, reason)


def _write(path: Path, content: object) -> FileFacts:
    with atomic_file(path) as file:
        torch.save(content, cast(IO[bytes], file))
        return FileFacts(file.num_bytes, file.sha256)
