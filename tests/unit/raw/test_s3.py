"""A public S3 bucket, served on loopback with S3's answers: ranges, ETags, 403 for what is absent.

The server is the test suite's own. moto's server mode would bring the AWS SDK and a web framework.
"""

from __future__ import annotations

import contextlib
import hashlib
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from scalefold.raw import mirrors
from scalefold.raw.mirrors import Downloader, UnavailableError

ROOT = "s3://openfold/pdb"
NAMES = ("busy", "cut", "whole", "changed", "early")
FETCH = """
import sys
from pathlib import Path
from scalefold.raw import mirrors
url, name, target = sys.argv[1:]
mirrors.web_root = lambda root: url
mirrors.Downloader(attempts=1).get(["s3://openfold/pdb"], name, Path(target))
"""


def content(name: str, version: int = 1) -> bytes:
    return f"{name} {version}\n".encode() * 4000


def publish(site, name: str, version: int = 1) -> None:
    body = content(name, version)
    site.files[f"/pdb/{name}"] = body
    site.etags[f"/pdb/{name}"] = f'"{hashlib.md5(body).hexdigest()}"'


@pytest.fixture
def bucket(site, monkeypatch: pytest.MonkeyPatch):
    """The bucket's server, in place of Amazon's."""
    public = mirrors.web_root(ROOT)
    assert public == "https://openfold.s3.amazonaws.com/pdb"
    monkeypatch.setattr(mirrors, "web_root", lambda root: root.replace(ROOT, f"{site.url}/pdb"))
    for name in NAMES:
        publish(site, name)
    return site


def attempt(folder: Path) -> dict[str, str]:
    """Ask for each file once, and return the hashes of those that came."""
    found = {}
    with closing(Downloader(attempts=1)) as downloader:
        for name in NAMES:
            with contextlib.suppress(UnavailableError):
                found[name] = downloader.get([ROOT], name, folder / name).sha256
    return found


def test_after_all_that_can_fail_a_rerun_fetches_what_is_missing(bucket, tmp_path: Path) -> None:
    bucket.faults |= {
        "/pdb/busy": [503],
        "/pdb/cut": [("drop", 9000)],
        "/pdb/changed": [("drop", 9000)],
        "/pdb/early": [{"Content-Length": "9999999"}],
    }
    assert attempt(tmp_path).keys() == {"whole"}
    publish(bucket, "changed", 2)  # midway
    bucket.requests.clear()
    expected = {name: content(name, 2 if name == "changed" else 1) for name in NAMES}
    hashes = {name: hashlib.sha256(body).hexdigest() for name, body in expected.items()}
    assert attempt(tmp_path) == hashes
    asked = dict(bucket.requests)
    assert "/pdb/whole" not in asked
    assert asked["/pdb/cut"] == "bytes=9000-"
    assert {name: (tmp_path / name).read_bytes() for name in NAMES} == expected
    bucket.requests.clear()
    assert attempt(tmp_path) == hashes
    assert bucket.requests == []


def test_what_a_bucket_forbids_to_list_is_absent(bucket, tmp_path: Path) -> None:
    bucket.faults["/pdb/none"] = [403]
    with closing(Downloader(attempts=1)) as downloader, pytest.raises(UnavailableError) as caught:
        downloader.get([ROOT], "none", tmp_path / "none")
    assert caught.value.is_absent


def test_a_killed_download_is_gone_on_with(bucket, tmp_path: Path) -> None:
    target = tmp_path / "cut"
    bucket.faults["/pdb/cut"] = [("slow", 0.0005)]
    command = [sys.executable, "-c", FETCH, f"{bucket.url}/pdb", "cut", str(target)]
    process = subprocess.Popen(command)
    part = next_part(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not target.exists()
    have = part.stat().st_size
    assert 0 < have < len(content("cut"))
    with closing(Downloader(attempts=1)) as downloader:
        downloader.get([ROOT], "cut", target)
    assert target.read_bytes() == content("cut")
    assert bucket.requests[-1] == ("/pdb/cut", f"bytes={have}-")


def next_part(folder: Path) -> Path:
    """Wait for an incomplete file with something in it."""
    while True:
        for path in folder.glob("*.part"):
            if path.stat().st_size:
                return path
        time.sleep(0.01)
