"""A public S3 bucket, served on loopback with S3's answers: ranges, ETags, 403 for what is absent.

The server is the test suite's own, which can fail on demand. The last test asks moto's server where
that is installed (the extra ``test-s3``): it brings the AWS SDK, 300 MB.
"""

from __future__ import annotations

import contextlib
import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from scalefold.fetch import mirrors
from scalefold.fetch.download import download
from scalefold.fetch.mirrors import Downloader, UnavailableError

ROOT = "s3://openfold/pdb"
NAMES = ("busy", "cut", "whole", "changed", "early")
FETCH = """
import sys
from pathlib import Path
from scalefold.fetch import mirrors
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


def test_a_server_that_stalls_is_asked_for_the_rest_by_a_rerun(bucket, tmp_path: Path) -> None:
    target = tmp_path / "cut"
    bucket.faults["/pdb/cut"] = [("stall", 9000)]
    patience = 2.0  # seconds, enough for the server to answer
    with closing(Downloader(attempts=1, timeout_seconds=patience)) as downloader:
        with pytest.raises(UnavailableError, match="ReadTimeout") as caught:
            downloader.get([ROOT], "cut", target)
        assert not caught.value.is_absent
        assert not target.exists()
        got = downloader.get([ROOT], "cut", target)
    assert got.sha256 == hashlib.sha256(content("cut")).hexdigest()
    assert target.read_bytes() == content("cut")
    assert bucket.requests == [("/pdb/cut", None), ("/pdb/cut", "bytes=9000-")]


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


@pytest.fixture
def moto_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of moto's S3 server, in place of Amazon's."""
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    monkeypatch.setenv("no_proxy", "*")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    try:
        host, port = running.get_host_and_port()
        url = f"http://{host}:{port}/openfold"
        httpx.put(url).raise_for_status()
        monkeypatch.setattr(mirrors, "web_root", lambda root: root.replace("s3://openfold", url))
        yield url
    finally:
        running.stop()


def test_a_real_s3_server(moto_bucket: str, tmp_path: Path) -> None:
    """Anonymous requests, sizes, a range from where a part ends, and another ETag."""

    def put(body: bytes) -> None:
        headers = {"x-amz-acl": "public-read"}
        httpx.put(f"{moto_bucket}/pdb/a", content=body, headers=headers).raise_for_status()

    def begin(target: Path) -> Path:
        """Break a download off, and mark what came of it."""

        def stop() -> None:
            raise InterruptedError

        part = target.with_name(f"{target.name}.part")
        with httpx.Client() as client, pytest.raises(InterruptedError):
            download(client, f"{moto_bucket}/pdb/a", part, stop)
        assert 0 < part.stat().st_size < len(first)
        part.write_bytes(b"-" * part.stat().st_size)
        return part

    first, second = bytes(range(250)) * 8000, bytes(range(1, 251)) * 8000
    put(first)
    with closing(Downloader(attempts=2, backoff_seconds=0.001)) as downloader:
        assert downloader.size([ROOT], "a") == len(first)
        downloader.get([ROOT], "a", tmp_path / "whole")
        assert (tmp_path / "whole").read_bytes() == first
        had = begin(tmp_path / "broken").stat().st_size
        downloader.get([ROOT], "a", tmp_path / "broken")
        assert (tmp_path / "broken").read_bytes() == b"-" * had + first[had:], "only the rest came"
        begin(tmp_path / "changed")
        put(second)
        downloader.get([ROOT], "a", tmp_path / "changed")
        assert (tmp_path / "changed").read_bytes() == second
        with pytest.raises(UnavailableError) as caught:
            downloader.get([ROOT], "none", tmp_path / "none")
        assert caught.value.is_absent
