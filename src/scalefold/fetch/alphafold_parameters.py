"""AlphaFold's published parameters: one archive, downloaded, checked and unpacked."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Final

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from scalefold.config.mirror_roots import check_roots, local_folder, web_root
from scalefold.errors import InputError
from scalefold.fetch.download import make_client
from scalefold.fetch.mirrors import Downloader, UnavailableError
from scalefold.fetch.part_file import MirrorError
from scalefold.io.atomic import atomic_file, make_folder, write_bytes

ROOT: Final = "https://storage.googleapis.com/alphafold"
ARCHIVE: Final = "alphafold_params_2022-12-06.tar"
RECORD: Final = f"{ARCHIVE}.sha256"
LICENCE: Final = "CC BY 4.0"
_NAME: Final = re.compile(r"params_model_\w+\.npz|LICENSE", re.ASCII)
_MD5: Final = re.compile(r"md5=([A-Za-z0-9+/]{22}==)")
_BLOCK_BYTES: Final = 1 << 20
_LIMIT_SECONDS: Final = 7 * 86_400.0


def fetch_parameters(
    out: Path,
    root: str = ROOT,
    downloader: Downloader | None = None,
) -> list[Path]:
    """Download the parameters into a folder; a broken download is resumed.

    No hash of the archive is published. Its MD5 is compared with the one that Google's server
    states. When all parameters are there, its SHA-256 and size are written to ``RECORD``, which
    marks the folder as complete. Then the archive is deleted.

    Parameters
    ----------
    root
        Mirror that has the archive.

    Returns
    -------
    list of Path
        The files, by name.

    Raises
    ------
    InputError
        The mirror does not give the archive, the archive is damaged or holds other files than
        parameters, or the disk has no room for archive and parameters.
    """
    check_roots([root], "--mirror")
    mark, archive = out / RECORD, out / ARCHIVE
    if not mark.exists():
        make_folder(out)
        with closing(downloader or Downloader(limit_seconds=_LIMIT_SECONDS)) as running:
            sha256 = _download(running, root, archive)
        _check_md5(root, archive)
        _unpack(archive, out)
        size = archive.stat().st_size
        write_bytes(mark, f"{sha256}  {ARCHIVE}\n# {size} bytes\n".encode())
        archive.unlink()
    return sorted(path for path in out.iterdir() if _NAME.fullmatch(path.name))


def _download(downloader: Downloader, root: str, archive: Path) -> str:
    """Bring the archive, show how far it is, and return its SHA-256."""
    part = archive.with_name(f"{archive.name}.part")
    columns = (TextColumn(ARCHIVE), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        size = downloader.size([root], ARCHIVE)
        there = max((path.stat().st_size for path in (archive, part) if path.exists()), default=0)
        free, needed = shutil.disk_usage(archive.parent).free, 2 * size - there
        if free < needed:
            raise InputError(
                f"{archive.parent}: {free / 1e9:.1f} GB are free, {needed / 1e9:.1f} GB are needed "
                "for the archive and what is in it. Make room, or choose another folder"
            )
        with (
            Progress(*columns, console=Console(stderr=True)) as progress,
            ThreadPoolExecutor(1) as pool,
        ):
            task = progress.add_task("", total=size, completed=there)
            future = pool.submit(downloader.get, [root], ARCHIVE, archive)
            try:
                while not wait([future], timeout=0.5).done:
                    if part.exists():
                        progress.update(task, completed=part.stat().st_size)
                return future.result().sha256
            except BaseException:
                downloader.cancel()
                raise
    except UnavailableError as error:
        raise InputError(
            f"{error}. Try again, the download goes on; or give another place with --mirror"
        ) from error


def _check_md5(root: str, archive: Path) -> None:
    """Compare the archive with the MD5 that Google's server states; other servers state none."""
    if local_folder(root) is not None:
        return
    try:
        with make_client(60.0, 1) as client:
            answer = client.head(f"{web_root(root)}/{ARCHIVE}")
    except (httpx.HTTPError, MirrorError) as error:
        raise InputError(
            f"{root}: does not say what hash the archive has ({error}). Try again"
        ) from error
    stated = _MD5.search(answer.headers.get("x-goog-hash", ""))
    if stated is None:
        return
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "md5").digest()
    if digest != base64.b64decode(stated[1]):
        archive.unlink()
        raise InputError(
            f"{archive}: its MD5 is {digest.hex()}, the server states "
            f"{base64.b64decode(stated[1]).hex()}. It is deleted: fetch it again"
        )


def _unpack(archive: Path, out: Path) -> None:
    """Write the files of the archive; the names of all are checked before."""
    try:
        with tarfile.open(archive, "r:") as tar:
            members = [member for member in tar.getmembers() if not member.isdir()]
            for member in members:
                # A folder before the name is ignored.
                if not member.isreg() or not _NAME.fullmatch(PurePosixPath(member.name).name):
                    raise InputError(
                        f"{archive}: holds {member.name!r}, expected files params_model_*.npz and "
                        "LICENSE alone. It is no archive of AlphaFold's parameters"
                    )
            for member in members:
                content = tar.extractfile(member)
                assert content is not None, member.name
                with atomic_file(out / PurePosixPath(member.name).name) as file:
                    shutil.copyfileobj(content, file, _BLOCK_BYTES)
    except tarfile.TarError as error:
        raise InputError(
            f"{archive}: is no whole tar archive ({error}). Delete it and fetch it again"
        ) from error
