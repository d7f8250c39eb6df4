"""Get one file from the first mirror that has it.

A mirror is an ``http(s)://`` root, ``s3://bucket``, an rsync daemon, a ``file://`` URL, or a
folder. Only complete files have their final name. Data go to ``<name>.part``, which is renamed at
the end. A broken HTTP download is resumed from it, also in a later run.
"""

from __future__ import annotations

import filecmp
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Final
from urllib.parse import quote

import httpx

from scalefold.config.mirror_roots import local_folder, rsync_module, web_root
from scalefold.errors import InputError
from scalefold.fetch.download import RetryError, download, make_client, stated_size
from scalefold.fetch.part_file import REPLACE, MirrorError, Writer, discard, finish
from scalefold.fetch.rsync import Pulled, pull
from scalefold.fetch.rsync import stated_size as rsync_size
from scalefold.io.atomic import file_sha256, make_folder
from scalefold.raw.raw_folder import in_other_formats
from scalefold.raw.rejected import cause_first

_BLOCK_BYTES: Final = 1 << 20
_MOST_REASONS: Final = 10


@dataclass(frozen=True)
class FetchedFile:
    """A complete file: its size, SHA-256 and source.

    ``failures`` has the reason of each mirror, by root, that was asked before and failed. A mirror
    that lacks the file has not failed.
    """

    num_bytes: int
    sha256: str
    source: str
    failures: Mapping[str, str] = field(default_factory=dict)


class UnavailableError(Exception):
    """No mirror gave the file.

    ``is_absent`` is true if every mirror lacks the file, false if at least one failed otherwise.
    ``is_final`` is true if another try would end the same: each mirror lacks the file, or is local
    and has a damaged one.
    """

    def __init__(self, reasons: Sequence[str], is_absent: bool, is_final: bool) -> None:
        more = len(reasons) - _MOST_REASONS
        shown = [*reasons[:_MOST_REASONS], *([f"and {more} more"] if more > 0 else [])]
        super().__init__("; ".join(map(cause_first, shown)))
        self.is_absent = is_absent
        self.is_final = is_final


class Downloader:
    """Gets files from mirrors; may be used by several threads at once.

    Parameters
    ----------
    attempts
        Tries of each mirror, if it has no connection, a broken one, or a busy server.
    backoff_seconds
        Wait before the second try; doubled each time.
    timeout_seconds
        Longest wait for a connection or for the next bytes.
    limit_seconds
        Longest time for one file from one mirror, all tries together.
    part_suffix
        Ending of incomplete files. Processes that fetch into one folder at the same time need
        different endings. To resume after an interruption, each needs the same as before.
    max_unpacked_bytes
        Larger gzip files are refused; ``None``: none is.

    Attributes
    ----------
    pulled : dict of str to Pulled
        What rsync mirrors have given, by root.
    """

    def __init__(
        self,
        attempts: int = 5,
        backoff_seconds: float = 0.5,
        timeout_seconds: float = 60.0,
        limit_seconds: float = 3600.0,
        connections: int = 8,
        part_suffix: str = ".part",
        max_unpacked_bytes: int | None = None,
    ) -> None:
        self._max_unpacked_bytes = max_unpacked_bytes
        self._part_suffix = part_suffix
        self._cancelled = threading.Event()
        self._attempts = attempts
        self._backoff_seconds = backoff_seconds
        self._timeout_seconds = timeout_seconds
        self._limit_seconds = limit_seconds
        self._connections = connections
        self._lock = threading.Lock()
        self.pulled: dict[str, Pulled] = {}
        self._opened: httpx.Client | None = None

    def close(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            self._opened.close()

    def cancel(self) -> None:
        """Make all threads stop at their next block; their downloads can go on later."""
        self._cancelled.set()

    def get(
        self, roots: Sequence[str], relative: str, target: Path, others: Sequence[str] = ()
    ) -> FetchedFile:
        """Bring ``relative`` from the first of ``roots`` that has it to ``target``.

        A root may have the file under one of the names ``others`` instead. An existing ``target``
        is complete, and kept, unless a local mirror has other content now: that is copied. Gzip
        files are unpacked once, to check that they are whole.

        Raises
        ------
        UnavailableError
            No mirror gave the file.
        InputError
            The file cannot be written (no space, no permission), or a root is not understood.
        """
        reasons: list[str] = []
        failures: dict[str, str] = {}
        is_final = True
        for root, name in product(roots, (relative, *others)):
            try:
                return replace(self._get(root, name, target), failures=failures)
            except MirrorError as error:
                reasons.append(str(error))
                if not error.is_absent:
                    failures[root] = str(error)
                is_local = local_folder(root) is not None and not error.may_pass
                is_final = is_final and (error.is_absent or is_local)
        if target.exists():
            return FetchedFile(target.stat().st_size, file_sha256(target), "kept", failures)
        raise UnavailableError(reasons, is_absent=not failures, is_final=is_final)

    def pull(
        self, root: str, names: Collection[str], folder: Path, advance: Callable[[], None]
    ) -> None:
        """Bring ``names`` from an rsync mirror into ``folder``, where `get` finds them.

        Raises as `scalefold.fetch.rsync.pull`.
        """

        def wait(attempt: int) -> None:
            self._cancelled.wait(self._backoff_seconds * 2 ** (attempt - 1))

        self.pulled[root] = pull(root, names, folder, self._attempts, wait, advance)

    def size(self, roots: Sequence[str], relative: str, others: Sequence[str] = ()) -> int:
        """Return the size in bytes that the mirror states from which `get` would take a file.

        Raises
        ------
        UnavailableError
            No mirror has the file and states its size.
        """
        reasons: list[str] = []
        is_absent = True
        for root, name in product(roots, (relative, *others)):
            try:
                return self._size(root, name)
            except MirrorError as error:
                reasons.append(str(error))
                is_absent = is_absent and error.is_absent
        raise UnavailableError(reasons, is_absent=is_absent, is_final=False)

    def _size(self, root: str, relative: str) -> int:
        if rsync_module(root) is not None:
            return rsync_size(root, relative)
        folder = local_folder(root)
        if folder is not None:
            path = folder / relative
            if not path.is_file():
                raise MirrorError(f"{path}: no such file", is_absent=True)
            return path.stat().st_size
        url = f"{web_root(root)}/{quote(relative)}"
        try:
            return stated_size(self._client(), url)
        except (MirrorError, InputError):
            raise
        except Exception as error:
            raise _odd_answer(url, error) from error

    def _get(self, root: str, relative: str, target: Path) -> FetchedFile:
        """Bring a file from one mirror, or raise a MirrorError."""
        folder = local_folder(root)
        if folder is not None:
            return self._copy(folder / relative, target)
        is_rsync = rsync_module(root) is not None
        url = f"{root if is_rsync else web_root(root)}/{quote(relative)}"
        if target.exists():
            return FetchedFile(target.stat().st_size, file_sha256(target), url)
        return self._take(root, relative, url, target) if is_rsync else self._download(url, target)

    def _take(self, root: str, relative: str, url: str, target: Path) -> FetchedFile:
        """Move a file that rsync has fetched to its place."""
        pulled = self.pulled.get(root)
        if pulled is None or not (pulled.folder / relative).is_file():
            unasked = MirrorError(f"{url}: was not asked for, since an earlier mirror has the file")
            raise unasked if pulled is None else pulled.errors.get(relative, unasked)
        part = target.with_name(target.name + self._part_suffix)
        discard(part)
        make_folder(target.parent)
        (pulled.folder / relative).replace(part)
        finish(part, target, url, self._max_unpacked_bytes)
        return FetchedFile(target.stat().st_size, file_sha256(target), url)

    def _client(self) -> httpx.Client:
        """Return the client of all threads. It is made when first used: folders need none."""
        with self._lock:
            if self._opened is None:
                self._opened = make_client(self._timeout_seconds, self._connections)
            return self._opened

    def _copy(self, source: Path, target: Path) -> FetchedFile:
        part = target.with_name(target.name + self._part_suffix)
        try:
            if not source.is_file():
                others = ", ".join(in_other_formats(source))
                hint = f" ({others} is there, but a run reads one format)" if others else ""
                raise MirrorError(f"{source}: no such file{hint}", is_absent=True)
            if not (target.is_file() and filecmp.cmp(source, target, shallow=False)):
                discard(part)
                with Writer(part, append=False) as writer, source.open("rb") as file:
                    while block := file.read(_BLOCK_BYTES):
                        writer.write(block)
                finish(part, target, str(source), self._max_unpacked_bytes)
        except OSError as error:  # of the source: what is wrong with the target is an InputError
            raise MirrorError(
                f"{source}: cannot be read ({error.strerror}): {REPLACE}", may_pass=True
            ) from error
        return FetchedFile(target.stat().st_size, file_sha256(target), source.as_uri())

    def _download(self, url: str, target: Path) -> FetchedFile:
        """Try a few times, within the time limit. Any failure lets other mirrors be asked."""
        part = target.with_name(target.name + self._part_suffix)
        end = time.monotonic() + self._limit_seconds

        def check() -> None:
            if self._cancelled.is_set():
                raise MirrorError(f"{url}: interrupted")
            if time.monotonic() > end:
                raise MirrorError(f"{url}: not complete after {self._limit_seconds:g} s")

        reason = ""
        for attempt in range(self._attempts):
            if attempt:
                self._cancelled.wait(self._backoff_seconds * 2 ** (attempt - 1))
            check()
            try:
                download(self._client(), url, part, check)
                finish(part, target, url, self._max_unpacked_bytes)
                return FetchedFile(target.stat().st_size, file_sha256(target), url)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
            except RetryError as error:
                reason = str(error)
            except (MirrorError, InputError):
                raise
            except Exception as error:
                raise _odd_answer(url, error) from error
        raise MirrorError(f"{url}: {reason} (after {self._attempts} tries)")


def _odd_answer(url: str, error: Exception) -> MirrorError:
    """Redirects in a circle, say, or a host without a valid name: the client has many errors."""
    return MirrorError(f"{url}: {type(error).__name__}: {error}")
