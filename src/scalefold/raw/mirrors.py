"""Get one file from the first mirror that has it.

A mirror is an ``http(s)://`` root, a ``file://`` URL, or a folder. Only complete files ever carry
a final name: data go to ``<name>.part``, which is renamed at the end and from which a broken HTTP
download goes on, also in a later run.
"""

from __future__ import annotations

import errno
import filecmp
import hashlib
import os
import shutil
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import quote

import httpx

from scalefold.config.mirror_roots import local_folder
from scalefold.errors import InputError
from scalefold.raw.compressed import GZIP_MAGIC, too_large, unpacked

_ABSENT_STATUS: Final = frozenset({403, 404, 410})  # S3 answers 403 for what is not there.
_RETRY_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_BLOCK_BYTES: Final = 1 << 20
_REPLACE: Final = "replace it on that mirror, or add another mirror to data.mirrors"


@dataclass(frozen=True)
class FetchedFile:
    """A file that is now complete: its size, SHA-256 and where it came from.

    ``failures`` are the mirrors that were asked before and failed, by root, each with its reason;
    one that merely lacks the file is not among them.
    """

    num_bytes: int
    sha256: str
    source: str
    failures: Mapping[str, str] = field(default_factory=dict)


class UnavailableError(Exception):
    """No mirror gave the file.

    ``is_absent`` is true where every mirror says that it does not have it, false where at least one
    failed otherwise. ``is_final`` is true where another try would end the same: each mirror either
    lacks the file, or is local and holds a damaged one.
    """

    def __init__(self, reasons: Sequence[str], is_absent: bool, is_final: bool) -> None:
        super().__init__("; ".join(reasons))
        self.is_absent = is_absent
        self.is_final = is_final


class _MirrorError(Exception):
    def __init__(self, reason: str, is_absent: bool = False, may_pass: bool = False) -> None:
        super().__init__(reason)
        self.is_absent = is_absent
        self.may_pass = may_pass


class Downloader:
    """Gets files from mirrors; may be used by several threads at once.

    Parameters
    ----------
    attempts
        Tries a mirror, for failures that can pass (no connection, a broken one, a busy server).
    backoff_seconds
        Wait before the second try; doubled each time.
    timeout_seconds
        Longest wait for a connection or for the next bytes.
    connections
        Connections kept open at most.
    part_suffix
        Ending of incomplete files. Processes that fetch into one folder at the same time need
        different ones; to go on after an interruption, each needs the same as before.
    max_unpacked_bytes
        Gzip files that hold more are refused; ``None``: none.
    """

    def __init__(
        self,
        attempts: int = 5,
        backoff_seconds: float = 0.5,
        timeout_seconds: float = 60.0,
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
        self._connections = connections
        self._lock = threading.Lock()
        self._opened: httpx.Client | None = None

    def close(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            self._opened.close()

    def cancel(self) -> None:
        """Make all threads stop at their next block; their downloads can go on later."""
        self._cancelled.set()

    def get(self, roots: Sequence[str], relative: str, target: Path) -> FetchedFile:
        """Bring ``relative`` from the first of ``roots`` that has it to ``target``.

        An existing ``target`` is complete, and kept; but where a local mirror now holds other
        content, that is copied. Gzip files are unpacked once to see that they are whole.

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
        for root in roots:
            try:
                return replace(self._get(root, relative, target), failures=failures)
            except _MirrorError as error:
                reasons.append(str(error))
                if not error.is_absent:
                    failures[root] = str(error)
                is_local = local_folder(root) is not None and not error.may_pass
                is_final = is_final and (error.is_absent or is_local)
        if target.exists():
            return FetchedFile(target.stat().st_size, file_sha256(target), "kept", failures)
        raise UnavailableError(reasons, is_absent=not failures, is_final=is_final)

    def _get(self, root: str, relative: str, target: Path) -> FetchedFile:
        """Bring a file from one mirror, or raise a _MirrorError."""
        folder = local_folder(root)
        if folder is not None:
            return self._copy(folder / relative, target)
        url = f"{root.rstrip('/')}/{quote(relative)}"
        if target.exists():
            return FetchedFile(target.stat().st_size, file_sha256(target), url)
        return self._download(url, target)

    def _client(self) -> httpx.Client:
        """Return the client of all threads; made when first used, for folders need none."""
        with self._lock:
            if self._opened is None:
                try:
                    self._opened = httpx.Client(
                        # The bytes are stored and hashed as they are; a transfer encoding would
                        # change them.
                        headers={"Accept-Encoding": "identity", "User-Agent": "scalefold"},
                        timeout=self._timeout_seconds,
                        follow_redirects=True,
                        limits=httpx.Limits(max_connections=self._connections),
                    )
                except OSError as error:
                    raise InputError(
                        f"certificates for https cannot be loaded: {error}. The variables "
                        "SSL_CERT_FILE and SSL_CERT_DIR name them: correct or unset these (in a "
                        "container those of the host reach in)"
                    ) from error
            return self._opened

    def _copy(self, source: Path, target: Path) -> FetchedFile:
        part = target.with_name(target.name + self._part_suffix)
        try:
            if not source.is_file():
                raise _MirrorError(f"{source}: no such file", is_absent=True)
            if not (target.is_file() and filecmp.cmp(source, target, shallow=False)):
                _discard(part)
                with _Writer(part, append=False) as writer, source.open("rb") as file:
                    while block := file.read(_BLOCK_BYTES):
                        writer.write(block)
                _finish(part, target, str(source), self._max_unpacked_bytes)
        except OSError as error:  # of the source: what is wrong with the target is an InputError
            raise _MirrorError(
                f"{source}: cannot be read ({error.strerror}): {_REPLACE}", may_pass=True
            ) from error
        return FetchedFile(target.stat().st_size, file_sha256(target), source.as_uri())

    def _download(self, url: str, target: Path) -> FetchedFile:
        part = target.with_name(target.name + self._part_suffix)
        reason = ""
        for attempt in range(self._attempts):
            if attempt:
                self._cancelled.wait(self._backoff_seconds * 2 ** (attempt - 1))
            if self._cancelled.is_set():
                break
            try:
                self._stream(url, part)
                _finish(part, target, url, self._max_unpacked_bytes)
                return FetchedFile(target.stat().st_size, file_sha256(target), url)
            except httpx.TransportError as error:
                reason = f"{url}: {type(error).__name__}: {error}"
            except _RetryError as error:
                reason = f"{url}: {error}"
        if self._cancelled.is_set():
            raise _MirrorError(f"{url}: interrupted")
        raise _MirrorError(f"{reason} (after {self._attempts} tries)")

    def _stream(self, url: str, part: Path) -> None:
        """Complete ``part``, from where it ends if the server still has the same file."""
        validator_file = part.with_name(part.name + ".validator")
        have, headers = 0, {}
        if part.exists() and validator_file.exists():
            stored_url, _, validator = validator_file.read_text("utf-8").partition("\n")
            if stored_url == url and validator:
                have = part.stat().st_size
        if have:
            headers = {"Range": f"bytes={have}-", "If-Range": validator}
        with self._client().stream("GET", url, headers=headers) as response:
            status = response.status_code
            if status in _ABSENT_STATUS:
                raise _MirrorError(f"{url}: HTTP {status}", is_absent=True)
            if status in _RETRY_STATUS:
                raise _RetryError(f"HTTP {status}")
            if status == 416 and have:
                # Nothing lies behind what is here: it is the whole file, or it never was its part.
                if response.headers.get("Content-Range", "") == f"bytes */{have}":
                    return
                _discard(part)
                raise _RetryError(f"has nothing behind byte {have}")
            if status not in (200, 206):
                raise _MirrorError(f"{url}: HTTP {status}")
            total, start = _extent(response)
            append = status == 206
            if append and start != have:
                _discard(part)
                raise _RetryError(f"asked for bytes from {have}, got them from {start}")
            if not append:
                _discard(part)
                # Weak validators must not be used for ranges (RFC 9110, sec. 13.1.5).
                etag = response.headers.get("ETag", "")
                strong = "" if etag.startswith("W/") else etag
                stamp = f"{url}\n{strong or response.headers.get('Last-Modified', '')}"
                with _Writer(validator_file, append=False) as writer:
                    writer.write(stamp.encode())
            with _Writer(part, append) as writer:
                # Blocks as they come: what a larger buffer held would be lost with the connection.
                for block in response.iter_raw():
                    writer.write(block)
                    if self._cancelled.is_set():
                        raise _RetryError("interrupted")
        size = part.stat().st_size
        if total is not None and size != total:
            if size > total:
                _discard(part)
            raise _RetryError(f"got {size} bytes of {total}")


class _RetryError(Exception):
    """A failure that may pass."""


class _Writer:
    """A file opened for writing, whose failures are the user's to mend, not the mirror's."""

    def __init__(self, path: Path, append: bool) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab" if append else "wb")
        except OSError as error:
            raise _write_error(path, error) from error

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
        except OSError as close_error:
            raise _write_error(self._path, close_error) from close_error

    def write(self, block: bytes) -> None:
        try:
            self._file.write(block)
        except OSError as error:
            raise _write_error(self._path, error) from error


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extent(response: httpx.Response) -> tuple[int | None, int]:
    """Return the file's whole size, if stated, and the first byte that this response carries."""
    content_range = response.headers.get("Content-Range", "")
    if response.status_code == 206 and content_range.startswith("bytes "):
        span, _, total = content_range[6:].partition("/")
        return (int(total) if total.isdigit() else None), int(span.split("-")[0])
    length = response.headers.get("Content-Length", "")
    return (int(length) if length.isdigit() else None), 0


def _discard(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
        part.with_name(part.name + ".validator").unlink(missing_ok=True)
    except OSError as error:
        raise _write_error(part, error) from error


def _finish(part: Path, target: Path, source: str, max_unpacked_bytes: int | None) -> None:
    """Check a complete part and give it its final name."""
    if target.suffix == ".gz":
        problem = _gzip_problem(part, max_unpacked_bytes)
        if problem:
            _discard(part)
            raise _MirrorError(f"{source}: {problem}")
    try:
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise _write_error(target, error) from error
    part.with_name(part.name + ".validator").unlink(missing_ok=True)


def _gzip_problem(path: Path, max_bytes: int | None) -> str | None:
    num_bytes = 0
    try:
        with path.open("rb") as file:
            start = file.read(12)
            if not start.startswith(GZIP_MAGIC[: len(start)]):
                return f"is not gzipped, it begins with {start!r}: gzip it there, or {_REPLACE}"
            file.seek(0)
            for piece in unpacked(file):
                num_bytes += len(piece)
                if max_bytes is not None and num_bytes > max_bytes:
                    return too_large(max_bytes)
    except zlib.error as error:
        return f"is not a whole gzip file ({error}): {_REPLACE}"
    except EOFError:
        return f"is a truncated gzip file: {_REPLACE}"
    return None


def _write_error(path: Path, error: OSError) -> InputError:
    if error.errno == errno.ENOSPC:
        free = shutil.disk_usage(path.parent).free
        return InputError(
            f"{path}: no space left on the device ({free} bytes free). Free some and start again; "
            "what is complete is kept."
        )
    return InputError(f"{path}: cannot be written ({error.strerror}). Correct the output folder.")
