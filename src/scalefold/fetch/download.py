"""Complete a part file over HTTP; an interrupted download is resumed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from scalefold.errors import InputError
from scalefold.fetch.part_file import MirrorError, Writer, discard

_ABSENT_STATUS: Final = frozenset({403, 404, 410})  # S3 answers 403 for what is not there.
_RETRY_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
_HTML: Final = (b"<!doctype html", b"<html")


class RetryError(Exception):
    """A failure that may pass."""


def make_client(timeout_seconds: float, connections: int) -> httpx.Client:
    """Return a client for all threads.

    Raises
    ------
    InputError
        The certificates that the environment names cannot be loaded.
    """
    try:
        return httpx.Client(
            # The bytes are stored and hashed as they are; a transfer encoding would change them.
            headers={"Accept-Encoding": "identity", "User-Agent": "scalefold"},
            timeout=timeout_seconds,
            follow_redirects=True,
            event_hooks={"response": [_stay_with_https]},
            limits=httpx.Limits(max_connections=connections),
        )
    except OSError as error:
        raise InputError(
            f"certificates for https cannot be loaded: {error}. The variables "
            "SSL_CERT_FILE and SSL_CERT_DIR name them: correct or unset these (in a "
            "container those of the host reach in)"
        ) from error


def stated_size(client: httpx.Client, url: str) -> int:
    """Return the size in bytes that a server states of a file.

    Raises
    ------
    MirrorError
        The server lacks it, or states no size.
    """
    response = client.head(url)
    if response.status_code in _ABSENT_STATUS:
        raise MirrorError(f"{url}: HTTP {response.status_code}", is_absent=True)
    size = _length(response)
    if response.status_code != 200 or size is None:
        raise MirrorError(f"{url}: HTTP {response.status_code}, states no size")
    _check_kind(response, url)
    return size


def download(client: httpx.Client, url: str, part: Path, check: Callable[[], None]) -> None:
    """Complete ``part``. It is resumed if the server still has the same file.

    Parameters
    ----------
    part
        The file ``<part>.validator`` keeps what the first answer states of the file.
    check
        Called after each block; what it raises ends the download.

    Raises
    ------
    RetryError
        The next try may succeed.
    MirrorError
        The mirror lacks the file, or does not answer with a file.
    InputError
        The file cannot be written.
    """
    first = _read_stamp(part, url)
    have = part.stat().st_size if first else 0
    headers = {"Range": f"bytes={have}-", "If-Range": first.validator} if first and have else {}
    with client.stream("GET", url, headers=headers) as response:
        status = response.status_code
        if status == 416 and have:
            # The part is the whole file, or not a part of it at all.
            if response.headers.get("Content-Range", "") == f"bytes */{have}":
                return
            discard(part)
            raise RetryError(f"has nothing after byte {have}")
        _check_status(response, url, have)
        _check_kind(response, url)
        if first and have and status == 206:
            total = _resumed_total(response, first, have, part)
        else:
            total = _length(response)
            _begin(part, _Stamp(url, _validator(response), total))
        blocks = response.iter_raw()
        block = next(blocks, b"")
        if block.lstrip()[:16].lower().startswith(_HTML):
            discard(part)
            raise MirrorError(f"{url}: the server returned an HTML page, not the file")
        with Writer(part, append=True) as writer:
            # Blocks are written as they come: a lost connection would lose a larger buffer.
            while block:
                writer.write(block)
                check()
                block = next(blocks, b"")
    size = part.stat().st_size
    if total is not None and size != total:
        if size > total:
            discard(part)
        raise RetryError(f"got {size} bytes of {total}")


@dataclass(frozen=True)
class _Stamp:
    """What the first answer states of a file: its validator, and its size if it is stated."""

    url: str
    validator: str
    total: int | None


def _begin(part: Path, stamp: _Stamp) -> None:
    """Empty the part, and write its stamp."""
    discard(part)
    total = "" if stamp.total is None else str(stamp.total)
    with Writer(_stamp_file(part), append=False) as writer:
        writer.write("\n".join((stamp.url, stamp.validator, total)).encode())


def _read_stamp(part: Path, url: str) -> _Stamp | None:
    """Return the stamp of a part; ``None`` if there is no part of this file to resume."""
    if not part.exists() or not _stamp_file(part).exists():
        return None
    lines = _stamp_file(part).read_text("ascii", errors="replace").split("\n")
    stored_url, validator, total = (*lines, "", "")[:3]
    if stored_url != url or not _is_sendable(validator):
        return None
    return _Stamp(url, validator, int(total) if _is_number(total) else None)


def _stamp_file(part: Path) -> Path:
    return part.with_name(part.name + ".validator")


def _validator(response: httpx.Response) -> str:
    """Return the validator by which a file is recognised later; empty if there is none.

    Weak validators must not be used for ranges (RFC 9110, sec. 13.1.5).
    """
    etag = response.headers.get("ETag", "")
    strong = "" if etag.startswith("W/") else etag
    validator = strong or response.headers.get("Last-Modified", "")
    return validator if _is_sendable(validator) else ""


def _is_sendable(validator: str) -> bool:
    return bool(validator) and validator.isascii() and validator.isprintable()


def _check_status(response: httpx.Response, url: str, have: int) -> None:
    status = response.status_code
    if status in _ABSENT_STATUS:
        raise MirrorError(f"{url}: HTTP {status}", is_absent=True)
    if status in _RETRY_STATUS:
        raise RetryError(f"HTTP {status}")
    if status != 200 and not (status == 206 and have):
        raise MirrorError(f"{url}: HTTP {status}")


def _check_kind(response: httpx.Response, url: str) -> None:
    """Refuse a page in place of the file, and bytes that are not the file's own."""
    kind = response.headers.get("Content-Type", "").lower()
    if kind.startswith(("text/html", "application/xhtml")):
        raise MirrorError(f"{url}: the server returned an HTML page, not the file")
    encoding = response.headers.get("Content-Encoding", "identity").lower()
    if encoding != "identity" and not url.endswith(".gz"):
        raise MirrorError(f"{url}: comes in encoding {encoding!r}, which was not asked for")


def _resumed_total(response: httpx.Response, first: _Stamp, have: int, part: Path) -> int | None:
    """Return the file's size by the answer to a range, which must be of the first answer's file."""
    stated = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    start, total = (int(stated[1]), stated[3]) if stated else (None, "*")
    number = first.total if total == "*" else int(total)
    problem = ""
    if start != have:
        problem = f"asked for bytes from {have}, got them from {start}"
    elif _validator(response) != first.validator:
        problem = "the file changed"
    elif first.total is not None and number != first.total:
        problem = f"the file had {first.total} bytes and has {number}"
    if problem:
        discard(part)
        raise RetryError(f"{problem}; starts from the beginning")
    return number


def _length(response: httpx.Response) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if _is_number(length) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _stay_with_https(response: httpx.Response) -> None:
    if response.has_redirect_location and response.url.scheme == "https":
        target = response.url.join(response.headers["Location"])
        if target.scheme != "https":
            raise MirrorError(f"{response.url}: redirects to {target}, which is not https")
