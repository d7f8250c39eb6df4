"""Read files that may be gzipped."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Final

from scalefold.errors import InputError, UnreadableError

_GZIP_MAGIC: Final = b"\x1f\x8b"


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes, unpacked where it is gzipped, whatever its name.

    Raises
    ------
    InputError
        The file is missing, cannot be read, is truncated or damaged, or is not gzip though named
        so.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file. Fetch it, or correct the path.") from error
    except PermissionError as error:
        raise UnreadableError.of(path) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Fetch it again.") from error
    if content.startswith(_GZIP_MAGIC):
        return _unpack(content, path)
    if path.suffix == ".gz":
        raise InputError(
            f"{path}: named .gz, but is not gzipped, it begins with {content[:12]!r}: gzip it, or "
            "download it again."
        )
    return content


def _unpack(content: bytes, path: Path) -> bytes:
    try:
        return gzip.decompress(content)
    except EOFError as error:
        raise InputError(
            f"{path}: gzip stream is truncated ({len(content)} bytes are there). Download it again."
        ) from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: gzip stream is damaged ({error}). Download it again.") from error
