"""Folders: that of results, which nodes may share, shards, and caches of compilers."""

from __future__ import annotations

import getpass
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scalefold.doctor.finding import Finding
from scalefold.errors import InputError
from scalefold.io.atomic import check_writable, write_bytes
from scalefold.shards.reader import ShardReader

_WRITTEN_BYTES: Final = 64 * 2**20
_SLOW_BYTES_PER_SECOND: Final = 20e6
"""A checkpoint of the full model has 1.5 GB: more than a minute."""
_SKEW_SECONDS: Final = 2.0
_FEW_BYTES: Final = 10 * 2**30
_TRIED_CHAINS: Final = 8


def of_results(folder: Path) -> Iterator[Finding]:
    """Try in a folder what checkpoints and locks need; what it takes is deleted again."""
    try:
        check_writable(folder, "results")
        there = next(path for path in (folder, *folder.parents) if path.is_dir())
        with tempfile.TemporaryDirectory(prefix=".scalefold-doctor-", dir=there) as inside:
            yield from _tried(Path(inside))
    except (InputError, OSError) as error:
        yield Finding("results", str(error), wrong=True)


def _tried(folder: Path) -> Iterator[Finding]:
    started = time.monotonic()
    write_bytes(folder / "written", b"\0" * _WRITTEN_BYTES)
    speed = _WRITTEN_BYTES / (time.monotonic() - started)
    write_bytes(folder / "written", b"again")
    renamed = (folder / "written").read_bytes() == b"again"
    free = shutil.disk_usage(folder).free
    yield Finding(
        "results",
        f"{folder.parent}: {speed / 1e6:,.0f} MB/s written, {free / 2**30:,.0f} GiB free",
        wrong=speed < _SLOW_BYTES_PER_SECOND or free < _FEW_BYTES,
    )
    yield Finding("rename", "a file is replaced in one step" if renamed else
                  "a file that was replaced has its old content: no checkpoint is safe there",
                  wrong=not renamed)  # fmt: skip
    (folder / "lock").open("x").close()
    try:
        (folder / "lock").open("x").close()
        yield Finding("lock", "one file can be created twice: training may start twice", wrong=True)
    except FileExistsError:
        yield Finding("lock", "exclusive creation of files works")
    before = time.time()
    (folder / "clock").touch()
    after, stamp = time.time(), (folder / "clock").stat().st_mtime
    skew = max(before - stamp, stamp - after, 0.0)
    yield Finding(
        "clock",
        f"that of the file system is {skew:.1f} s from this machine's: logs and Snakemake compare "
        "them" if skew > _SKEW_SECONDS else "agrees with the file system's",
        wrong=skew > _SKEW_SECONDS,
    )  # fmt: skip


def of_shards(folder: Path) -> Finding:
    """Read some chains, whose hashes are checked; `scalefold verify` reads all."""
    try:
        reader = ShardReader(folder)
        keys = [*reader.keys("train"), *reader.keys("validation")]
        tried = keys[:: max(1, len(keys) // _TRIED_CHAINS)][:_TRIED_CHAINS]
        for key in tried:
            reader.sample(key)
    except InputError as error:
        return Finding("shards", str(error), wrong=True)
    if not keys:
        return Finding("shards", f"{folder}: they hold no chain to train on", wrong=True)
    return Finding(
        "shards", f"{folder}: {len(keys):,} chains; {len(tried)} were read and are sound"
    )


def of_caches() -> Iterator[Finding]:
    """What compilers keep: without it each start compiles for minutes."""
    triton = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton/cache"
    own = Path(tempfile.gettempdir()) / f"torchinductor_{_user()}"
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or own
    for name, folder in (("triton", Path(triton)), ("inductor", Path(inductor))):
        try:
            check_writable(folder, f"cache of {name}")
        except InputError as error:
            yield Finding(name, str(error), wrong=True)
            continue
        filled = folder.is_dir() and any(folder.iterdir())
        state = "has compiled kernels" if filled else "empty: the first step compiles"
        yield Finding(name, f"cache {folder}: {state}")


def _user() -> str:
    """As torch names the cache's owner; in a container, a user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid_{os.getuid()}"
