"""Roots of mirrors: an ``http(s)://`` root, a ``file://`` URL, or a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from scalefold.errors import InputError


def local_folder(root: str) -> Path | None:
    """Return the folder that a mirror root names, ``None`` for an HTTP root.

    Raises
    ------
    InputError
        A scheme other than http, https and file, a URL of these two without a host, or a
        ``file://`` URL of another host.
    """
    parts = urlsplit(root)
    if parts.scheme in ("http", "https"):
        if not parts.netloc:
            raise InputError(f"names no host; after {parts.scheme}: come two slashes")
        return None
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InputError(
                f"names host {parts.netloc!r}; a file:// URL has three slashes, as in "
                "file:///data/wwpdb"
            )
        return Path(unquote(parts.path))
    if "://" in root:
        raise InputError(
            f"has scheme {parts.scheme!r}, expected https, http, file, or a folder's path. wwPDB's "
            "archive is https://files.wwpdb.org; of another, copy the files and give their folder"
        )
    return Path(root).absolute()


def check_roots(roots: Sequence[str], key: str) -> None:
    """Refuse mirrors that are folders, but not there; ``key`` names their list in errors.

    Raises
    ------
    InputError
        Such a mirror, or what `local_folder` refuses.
    """
    for root in roots:
        folder = local_folder(root)
        if folder is not None and not folder.is_dir():
            raise InputError(f"{key}: {root} is no folder here; correct it, or make it")
