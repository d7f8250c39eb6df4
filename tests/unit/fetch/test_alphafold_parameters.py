"""AlphaFold's archive of parameters, a small one of random numbers on loopback."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from scalefold.errors import InputError
from scalefold.fetch.alphafold_parameters import ARCHIVE, RECORD, fetch_parameters
from scalefold.fetch.mirrors import Downloader

PATH = f"/{ARCHIVE}"
RANDOM = np.random.default_rng(0)
FILES = {
    "./LICENSE": b"CC BY 4.0",
    "params/params_model_1.npz": RANDOM.bytes(40_000),
    "params_model_2_ptm.npz": RANDOM.bytes(30_000),
}


def archive(files: dict[str, bytes], link: str | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        if link is not None:
            member = tarfile.TarInfo("params_model_9.npz")
            member.type, member.linkname = tarfile.SYMTYPE, link
            tar.addfile(member)
    return out.getvalue()


def state_md5(site, content: bytes) -> None:
    md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
    site.headers["x-goog-hash"] = f"crc32c=AAAAAA==, md5={md5}"


def run(site, out: Path) -> list[Path]:
    return fetch_parameters(out, site.url, Downloader(attempts=1))


def test_an_interrupted_archive_goes_on_and_is_unpacked(site, tmp_path: Path) -> None:
    content = site.files[PATH] = archive(FILES)
    state_md5(site, content)
    site.faults[PATH] = [("drop", 50_000)]
    with pytest.raises(InputError, match="goes on"):
        run(site, tmp_path)
    files = run(site, tmp_path)
    assert (PATH, "bytes=50000-") in site.requests
    assert {path.name: path.read_bytes() for path in files} == {
        Path(name).name: content for name, content in FILES.items()
    }
    sha256, name, *size = (tmp_path / RECORD).read_text().split()
    assert (sha256, name) == (hashlib.sha256(content).hexdigest(), ARCHIVE)
    assert size == ["#", str(len(content)), "bytes"]
    assert not (tmp_path / ARCHIVE).exists()
    site.requests.clear()
    assert run(site, tmp_path) == files
    assert site.requests == []


def test_another_hash_than_the_server_states_is_an_error(site, tmp_path: Path) -> None:
    content = site.files[PATH] = archive(FILES)
    state_md5(site, content + b"x")
    with pytest.raises(InputError, match=r"MD5.*fetch it again"):
        run(site, tmp_path)
    assert list(tmp_path.iterdir()) == []
    state_md5(site, content)
    assert len(run(site, tmp_path)) == len(FILES)


@pytest.mark.parametrize(
    "content",
    [
        archive(FILES | {"../../other": b"x"}),
        archive(FILES | {"/etc/x.npz": b"x"}),
        archive(FILES, link="/etc/hostname"),
        archive(FILES)[:700],
        b"no archive",
    ],
)
def test_other_archives_are_refused_before_anything_is_unpacked(
    site, tmp_path: Path, content: bytes
) -> None:
    site.files[PATH] = content
    with pytest.raises(InputError, match="archive"):
        run(site, tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", ARCHIVE]
