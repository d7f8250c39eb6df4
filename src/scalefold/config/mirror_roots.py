"""Roots of mirrors: an ``http(s)://`` root, a public S3 bucket, an rsync daemon, a ``file://`` URL,
or a folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from scalefold.errors import InputError

_RSYNC: Final = re.compile(r"(rsync://[\w.:-]+/[\w.-]+|[\w.-]+::[\w.-]+)((?:/[\w./-]*)?)", re.ASCII)


def rsync_module(root: str) -> tuple[str, str] | None:
    """Return an rsync root's daemon and module, and the path below, each ending in a slash if it is
    not empty; ``None`` for another root.

    Raises
    ------
    InputError
        A ``rsync://`` URL without a host and a module.
    """
    found = _RSYNC.fullmatch(root)
    if found is None and root.startswith("rsync:"):
        raise InputError(
            "names no host and module; expected rsync://host:port/module or host::module, as in "
            "rsync://rsync.wwpdb.org:33444/ftp"
        )
    if found is None:
        return None
    below = found[2].strip("/")
    return f"{found[1]}/", f"{below}/" if below else ""


def local_folder(root: str) -> Path | None:
    """Return the folder that a mirror root names, ``None`` for one on the web.

    Raises
    ------
    InputError
        A scheme other than http, https, s3, rsync and file, a URL of the first four without a host,
        or a ``file://`` URL of another host.
    """
    if rsync_module(root) is not None:
        return None
    parts = urlsplit(root)
    if parts.scheme in ("http", "https", "s3"):
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
            f"has scheme {parts.scheme!r}, expected https, http, s3, rsync, file, or a folder's "
            "path. wwPDB's archive is https://files.wwpdb.org; of another, copy the files and give "
            "their folder"
        )
    return Path(root).absolute()


def web_root(root: str) -> str:
    """Return where a mirror on the web is asked: of ``s3://bucket/path``, the public https form."""
    parts = urlsplit(root)
    if parts.scheme != "s3":
        return root.rstrip("/")
    # A dot in the bucket's name is none of the host's that the certificate is for.
    host = "s3.amazonaws.com"
    place = f"{host}/{parts.netloc}" if "." in parts.netloc else f"{parts.netloc}.{host}"
    return f"https://{place}{parts.path}".rstrip("/")


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
            raise InputError(f"{key}: {root} is not a folder here; correct it, or make it")
