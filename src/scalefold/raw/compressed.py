"""Read files that may be gzipped: in pieces, since a small file may unpack to a large one."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from scalefold.errors import InputError, UnreadableError
from scalefold.raw.raw_folder import in_other_formats

GZIP_MAGIC: Final = b"\x1f\x8b"
_PIECE_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 1 << 24
MAX_STRUCTURE_BYTES: Final = 500_000_000
"""Limit of an unpacked structure, unless configured; the PDB's have up to 300 MB."""
SHRINK: Final = "Only its first model is read: write that alone, or fewer chains, to a smaller file"
"""How to fix that a structure is larger, where the limit is fixed."""
RAISE_LIMIT: Final = (
    "If it is what it should be, raise data.max_structure_megabytes, and fetch and pack it again"
)
"""How to fix that, where it is configured."""


def read_bytes(path: Path, max_bytes: int | None = None, mend: str = SHRINK) -> bytes:
    """Return a file's bytes, unpacked where it is gzipped, whatever its name.

    Raises
    ------
    InputError
        The file is missing, cannot be read, is truncated or damaged, is not gzip though named so,
        or has more than ``max_bytes``, unpacked: ``mend`` says what to do then.
    """
    content = io.BytesIO()
    with _explained(path), path.open("rb") as file:
        for piece in _pieces(file, path):
            content.write(piece)
            if max_bytes is not None and content.tell() > max_bytes:
                raise InputError(f"{path}: {too_large(max_bytes, mend)}")
    return content.getvalue()


def read_lines(path: Path) -> Iterator[str]:
    """Give the lines of a text, unpacked where it is gzipped, in memory of a few lines.

    Raises
    ------
    InputError
        As `read_bytes`, or a line has more than `MAX_LINE_BYTES`.
    """
    rest = ""
    for piece in read_text_pieces(path):
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            yield line.rstrip("\r")
        if len(rest) > MAX_LINE_BYTES:
            raise InputError(
                f"{path}: a line has more than {MAX_LINE_BYTES:,} bytes: this is no text of "
                "lines. Name another file."
            )
    if rest:
        yield rest.rstrip("\r")


def read_text_pieces(path: Path) -> Iterator[str]:
    """Give a text in pieces of 1 MiB at most, unpacked where it is gzipped.

    A byte order mark, which Excel writes, is left out. Raises as `read_bytes`.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    with _explained(path), path.open("rb") as file:
        for piece in _pieces(file, path):
            yield decoder.decode(piece)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into messages that say what to do."""
    try:
        yield
    except FileNotFoundError as error:
        others = ", ".join(in_other_formats(path))
        hint = f" ({others} is there)" if others else ""
        raise InputError(f"{path}: no such file{hint}. Fetch it, or correct the path.") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: is a folder. Name a file.") from error
    except PermissionError as error:
        raise UnreadableError.of(path) from error
    except EOFError as error:
        raise InputError(
            f"{path}: gzip stream is truncated ({path.stat().st_size} bytes are there). Download "
            "it again."
        ) from error
    except zlib.error as error:
        raise InputError(f"{path}: gzip stream is damaged ({error}). Download it again.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Fetch it again.") from error


def too_large(max_bytes: int, mend: str) -> str:
    """Return a message: a file is too large, and how to fix it."""
    return f"has more than {max_bytes / 1e6:g} MB, unpacked. {mend}"


def unpacked(file: BinaryIO) -> Iterator[bytes]:
    """Give the content of a gzip file in pieces of 1 MiB at most; it may have several members.

    Raises
    ------
    EOFError
        It is truncated.
    zlib.error
        It is damaged, or not gzipped.
    """
    if len(file.read(2)) < 2:
        raise EOFError
    file.seek(0)
    try:
        with gzip.GzipFile(fileobj=file) as content:
            while piece := content.read(_PIECE_BYTES):
                yield piece
    except gzip.BadGzipFile as error:
        raise zlib.error(str(error)) from error


def _pieces(file: BinaryIO, path: Path) -> Iterator[bytes]:
    start = file.read(12)
    file.seek(0)
    if start.startswith(GZIP_MAGIC):
        yield from unpacked(file)
        return
    if path.suffix == ".gz":
        found = f"it begins with {start!r}: gzip it" if start else "it is empty: remove it"
        raise InputError(f"{path}: named .gz, but is not gzipped, {found}, or download it again.")
    while block := file.read(_PIECE_BYTES):
        yield block
