from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from scalefold.config.mirror_roots import local_folder
from scalefold.errors import InputError
from scalefold.fetch.mirrors import Downloader, UnavailableError

BODY = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def body(site) -> None:
    site.files["/d/a.a3m"] = BODY


@pytest.fixture
def downloader() -> Iterator[Downloader]:
    with closing(Downloader(attempts=3, backoff_seconds=0.001, timeout_seconds=300.0)) as running:
        yield running


def only_file(folder: Path) -> Path:
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert len(files) == 1, files
    return files[0]


def test_download(site, downloader: Downloader, tmp_path: Path) -> None:
    target = tmp_path / "x/a.a3m"
    fetched = downloader.get([site.url + "/"], "d/a.a3m", target)
    assert target.read_bytes() == BODY
    assert fetched.num_bytes == len(BODY)
    assert fetched.sha256 == hashlib.sha256(BODY).hexdigest()
    assert fetched.source == f"{site.url}/d/a.a3m"
    assert only_file(tmp_path) == target


def test_certificates_that_are_not_there_concern_https_only(
    site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tmp_path / "ca-bundle.crt"
    monkeypatch.setenv("SSL_CERT_FILE", str(absent))
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror/a.a3m").write_bytes(BODY)
    with closing(Downloader()) as downloader:
        downloader.get([str(tmp_path / "mirror")], "a.a3m", tmp_path / "a.a3m")
        with pytest.raises(InputError, match="SSL_CERT_FILE"):
            downloader.get([site.url], "d/a.a3m", tmp_path / "b.a3m")


def test_complete_files_are_not_asked_for_again(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    first = downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m") == first
    assert len(site.requests) == 1


def test_a_dropped_connection_is_resumed_where_it_broke(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    site.faults["/d/a.a3m"] = [("drop", 1000), ("drop", 2000)]
    downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_bytes() == BODY
    assert [r for _, r in site.requests] == [None, "bytes=1000-", "bytes=3000-"]
    assert only_file(tmp_path).name == "a.a3m"


def test_a_later_run_resumes(site, tmp_path: Path) -> None:
    target = tmp_path / "a.a3m"
    site.faults["/d/a.a3m"] = [("drop", 1000)]
    with closing(Downloader(attempts=1)) as first, pytest.raises(UnavailableError) as caught:
        first.get([site.url], "d/a.a3m", target)
    assert not caught.value.is_absent
    assert not target.exists()
    with closing(Downloader(attempts=1)) as second:
        second.get([site.url], "d/a.a3m", target)
    assert target.read_bytes() == BODY
    assert site.requests[-1] == ("/d/a.a3m", "bytes=1000-")


def test_a_changed_file_is_not_glued_to_its_old_beginning(site, tmp_path: Path) -> None:
    target = tmp_path / "a.a3m"
    site.faults["/d/a.a3m"] = [("drop", 1000)]
    with closing(Downloader(attempts=1)) as first, pytest.raises(UnavailableError):
        first.get([site.url], "d/a.a3m", target)
    site.files["/d/a.a3m"], site.etags["/d/a.a3m"] = b"new" * 999, '"v2"'
    with closing(Downloader(attempts=1)) as second:
        second.get([site.url], "d/a.a3m", target)
    assert target.read_bytes() == b"new" * 999


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_without_a_strong_validator_it_starts_anew(
    site, downloader: Downloader, tmp_path: Path, etag: str
) -> None:
    site.etags["/d/a.a3m"] = etag
    site.faults["/d/a.a3m"] = [("drop", 1000)]
    downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_bytes() == BODY
    assert [r for _, r in site.requests] == [None, None]


def test_a_server_without_ranges_starts_anew(site, downloader: Downloader, tmp_path: Path) -> None:
    site.faults["/d/a.a3m"] = [("drop", 1000), "ignore-range"]
    downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_bytes() == BODY


def test_bytes_from_elsewhere_are_not_glued_on(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    site.faults["/d/a.a3m"] = [("drop", 1000), ("skip", 10)]
    downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_bytes() == BODY
    assert [r for _, r in site.requests] == [None, "bytes=1000-", None]


def test_a_part_longer_than_the_file_starts_anew(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    (tmp_path / "a.a3m.part").write_bytes(b"x" * 99_999)
    (tmp_path / "a.a3m.part.validator").write_text(f'{site.url}/d/a.a3m\n"v1"')
    downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_bytes() == BODY


def test_a_part_that_is_already_whole_is_taken(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    (tmp_path / "a.a3m.part").write_bytes(BODY)
    (tmp_path / "a.a3m.part.validator").write_text(f'{site.url}/d/a.a3m\n"v1"')
    downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert only_file(tmp_path).read_bytes() == BODY
    assert len(site.requests) == 1


def test_busy_servers_are_asked_again(site, downloader: Downloader, tmp_path: Path) -> None:
    site.faults["/d/a.a3m"] = [503, 429]
    downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_bytes() == BODY


def test_a_broken_mirror_hands_over_to_the_next(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    site.faults["/d/a.a3m"] = [500, 500, 500]
    folder = tmp_path / "mirror"
    (folder / "d").mkdir(parents=True)
    (folder / "d/a.a3m").write_bytes(b"local")
    got = downloader.get([site.url, folder.as_uri()], "d/a.a3m", tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_bytes() == b"local"
    assert got.source == (folder / "d/a.a3m").as_uri()
    assert got.failures == {site.url: f"{site.url}/d/a.a3m: HTTP 500 (after 3 tries)"}
    assert len(site.requests) == 3


def test_a_mirror_that_lacks_a_file_has_not_failed(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    roots = [str(tmp_path / "empty"), f"{site.url}/other", site.url]
    assert downloader.get(roots, "d/a.a3m", tmp_path / "a.a3m").failures == {}


def test_missing_everywhere_is_told_from_failing(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    roots = [str(tmp_path / "empty"), site.url]
    with pytest.raises(UnavailableError, match=r"HTTP 404 \(\S*/d/none\)") as caught:
        downloader.get(roots, "d/none", tmp_path / "none")
    assert caught.value.is_absent
    assert len(site.requests) == 1  # asking again would not help
    site.faults["/d/none"] = [500, 500, 500]
    with pytest.raises(UnavailableError, match=r"HTTP 500 .*3") as caught:
        downloader.get(roots, "d/none", tmp_path / "none")
    assert not caught.value.is_absent


def test_whether_another_try_would_end_the_same(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    """It would where each mirror lacks the file, or is a folder and holds a damaged one."""
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/x.gz").write_bytes(b"<html>sorry</html>")
    for faults, final in (([], True), ([500, 500, 500], False)):
        site.faults["/x.gz"] = faults
        with pytest.raises(UnavailableError) as caught:
            downloader.get([site.url, str(tmp_path / "damaged")], "x.gz", tmp_path / "x.gz")
        assert caught.value.is_final == final
        assert not caught.value.is_absent


def test_no_server_at_all(downloader: Downloader, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="ConnectError") as caught:
            downloader.get([url], "d/a", tmp_path / "a")
    assert not caught.value.is_absent


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(BODY, mtime=0)[:-20], "truncated gzip"),
        (gzip.compress(BODY, mtime=0)[:1], "truncated gzip"),
        (b"", "truncated gzip"),
        (gzip.compress(BODY, mtime=0)[:9] + b"\xff" * 99, "gzip"),
        (b"<html>sorry</html>", "HTML"),
        (b"data_5PTI\n# \n", r"b'data_5PTI\\n# '"),
    ],
)
def test_damaged_gzip_is_not_accepted(
    site, downloader: Downloader, tmp_path: Path, content: bytes, problem: str
) -> None:
    good = gzip.compress(BODY[:500]) + gzip.compress(BODY[500:])
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror/x.cif.gz").write_bytes(good)
    site.files["/x.cif.gz"] = content
    target = tmp_path / "out/x.cif.gz"
    with pytest.raises(UnavailableError, match=rf"{problem}.* \(\S*/x\.cif\.gz\)"):
        downloader.get([site.url], "x.cif.gz", target)
    assert list((tmp_path / "out").iterdir()) == []
    downloader.get([site.url, str(tmp_path / "mirror")], "x.cif.gz", target)
    assert target.read_bytes() == good


def test_a_body_that_ends_early_without_length_is_caught_by_gzip(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    site.files["/x.cif.gz"] = gzip.compress(BODY)
    site.faults["/x.cif.gz"] = ["no-length"]
    downloader.get([site.url], "x.cif.gz", tmp_path / "x.cif.gz")
    assert gzip.decompress((tmp_path / "x.cif.gz").read_bytes()) == BODY


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 302, "Location": "/d/a.a3m"},  # in a circle
        {"status": 302, "Location": "http://[::1"},
        {"status": 302, "Location": "http://\xe9\xff:99999/"},
        {"status": 302, "Location": "gopher://x/"},
        {"status": 302},
        {"status": 206},
        {"status": 206, "Content-Range": "bytes 0-9/10"},
        {"status": 304},
        {"status": 299},
        {"Content-Length": "much"},
        {"Content-Type": "text/html; charset=utf-8"},
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "br"},
    ],
    ids=str,
)
def test_no_answer_of_a_mirror_keeps_the_next_from_being_asked(
    site, downloader: Downloader, tmp_path: Path, answer: dict[str, object]
) -> None:
    site.faults["/d/a.a3m"] = [answer] * 99
    (tmp_path / "next/d").mkdir(parents=True)
    (tmp_path / "next/d/a.a3m").write_bytes(b">x\nA\n")
    got = downloader.get([site.url, str(tmp_path / "next")], "d/a.a3m", tmp_path / "a.a3m")
    assert list(got.failures) == [site.url]
    assert (tmp_path / "a.a3m").read_bytes() == b">x\nA\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"ETag": '"\xe9"'},
        {"ETag": '"a\tb"'},
        {"ETag": "", "Last-Modified": "yesterd\xe4y"},
    ],
    ids=str,
)
def test_a_validator_that_cannot_be_sent_back_is_none(
    site, downloader: Downloader, tmp_path: Path, changes: dict[str, object]
) -> None:
    site.faults["/d/a.a3m"] = [changes | {"Content-Length": str(len(BODY) + 1)}]
    downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_bytes() == BODY
    assert [r for _, r in site.requests] == [None, None]


@pytest.mark.parametrize(
    "content_range",
    [
        "",
        "bytes",
        "bytes -",
        "bytes x-y/z",
        "bytes 1000-\xb2/\xb2",
        "bytes 1000-10239/" + 5000 * "9",
    ],
    ids=range(6),
)
def test_a_malformed_range_starts_anew(
    site, downloader: Downloader, tmp_path: Path, content_range: str
) -> None:
    site.faults["/d/a.a3m"] = [("drop", 1000), {"Content-Range": content_range}]
    downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_bytes() == BODY


@pytest.mark.parametrize(
    ("etag", "now"), [('"v2"', BODY[::-1]), ('"v1"', BODY[::-1] + b"x"), ("", BODY[::-1])]
)
def test_halves_of_two_files_are_not_joined_where_if_range_is_ignored(
    site, downloader: Downloader, tmp_path: Path, etag: str, now: bytes
) -> None:
    site.faults["/d/a.a3m"] = [("drop", 1000)]
    with closing(Downloader(attempts=1)) as first, pytest.raises(UnavailableError):
        first.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    site.files["/d/a.a3m"], site.etags["/d/a.a3m"] = now, etag
    site.faults["/d/a.a3m"] = [{"Ignored-If-Range": ""}]
    downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_bytes() == now


def test_a_part_left_from_elsewhere_is_not_gone_on_with(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    (tmp_path / "a.a3m.part").write_bytes(b"x" * 100)
    (tmp_path / "a.a3m.part.validator").write_bytes(b"\xff\xfe\n\n")
    downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_bytes() == BODY


def test_a_page_in_place_of_the_file_is_refused_at_once(site, tmp_path: Path) -> None:
    site.files["/d/a.a3m"] = b"\n<!DOCTYPE html><html>come back later</html>"
    with closing(Downloader(attempts=9)) as downloader, pytest.raises(UnavailableError) as caught:
        downloader.get([site.url], "d/a.a3m", tmp_path / "a.a3m")
    assert not caught.value.is_absent
    assert len(site.requests) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_takes_too_long_is_asked_of_the_next(site, tmp_path: Path) -> None:
    site.faults["/d/a.a3m"] = [("slow", 0.05)] * 9
    (tmp_path / "next/d").mkdir(parents=True)
    (tmp_path / "next/d/a.a3m").write_bytes(b"local")
    with closing(Downloader(limit_seconds=0.5)) as downloader:
        got = downloader.get([site.url, str(tmp_path / "next")], "d/a.a3m", tmp_path / "a.a3m")
    assert list(got.failures) == [site.url]
    assert len(site.requests) == 1
    assert not list(tmp_path.glob("*.part*"))


def test_a_server_that_stalls_gives_way_to_the_next_mirror(site, tmp_path: Path) -> None:
    site.files["/d/a.a3m"] = BODY
    site.faults["/d/a.a3m"] = [("stall", 5)]
    (tmp_path / "next/d").mkdir(parents=True)
    (tmp_path / "next/d/a.a3m").write_bytes(BODY)
    roots = [site.url, str(tmp_path / "next")]
    with closing(Downloader(attempts=1, timeout_seconds=1.0)) as downloader:
        got = downloader.get(roots, "d/a.a3m", tmp_path / "a.a3m")
    assert list(got.failures) == [site.url]
    assert "Timeout" in got.failures[site.url]
    assert (tmp_path / "a.a3m").read_bytes() == BODY
    assert not list(tmp_path.glob("*.part*"))


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A certificate of this machine's, with its key; trusted."""
    path = tmp_path / "host.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 2 -addext"
    paths = ["-keyout", str(path), "-out", str(tmp_path / "certificate.pem")]
    subprocess.run(
        [*command.split(), "subjectAltName=IP:127.0.0.1", *paths], check=True, capture_output=True
    )
    path.write_bytes(path.read_bytes() + (tmp_path / "certificate.pem").read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    return path


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")
def test_https_is_not_left_by_a_redirect(site, certificate: Path, tmp_path: Path) -> None:
    class Redirects(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{site.url}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    with HTTPServer(("127.0.0.1", 0), Redirects) as server, closing(Downloader()) as downloader:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        root = f"https://127.0.0.1:{server.server_address[1]}"
        with pytest.raises(UnavailableError, match="https"):
            downloader.get([root], "d/a.a3m", tmp_path / "a.a3m")
        server.shutdown()
        thread.join()
    assert site.requests == []


def test_a_bomb_is_checked_in_little_memory(downloader: Downloader, tmp_path: Path) -> None:
    bomb = zlib.compressobj(9, wbits=31)
    content = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(64)) + bomb.flush()
    (tmp_path / "m").mkdir()
    (tmp_path / "m/x.cif.gz").write_bytes(content)
    tracemalloc.start()
    downloader.get([str(tmp_path / "m")], "x.cif.gz", tmp_path / "x.cif.gz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


def test_local_copy_follows_its_source(downloader: Downloader, tmp_path: Path) -> None:
    source, target = tmp_path / "m/a.a3m", tmp_path / "out/a.a3m"
    source.parent.mkdir()
    source.write_bytes(b"one")
    downloader.get([str(tmp_path / "m")], "a.a3m", target)
    os.utime(target, (1, 1))
    downloader.get([str(tmp_path / "m")], "a.a3m", target)
    assert target.stat().st_mtime == 1  # the same content is left alone
    source.write_bytes(b"two")
    assert downloader.get([str(tmp_path / "m")], "a.a3m", target).num_bytes == 3
    assert target.read_bytes() == b"two"
    source.unlink()
    assert downloader.get([str(tmp_path / "m")], "a.a3m", target).source == "kept"


def test_full_disk_is_named(
    downloader: Downloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/a").write_bytes(BODY)
    real_open = Path.open

    class Full:
        def __init__(self, file) -> None:
            self._file = file

        def write(self, block: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            self._file.close()

    def open_full(self: Path, mode: str = "r", *args, **kwargs):
        file = real_open(self, mode, *args, **kwargs)
        return Full(file) if "part" in self.name and mode == "wb" else file

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(InputError, match=r"\d+ bytes"):
        downloader.get([str(tmp_path / "m")], "a", tmp_path / "out/a")
    assert not (tmp_path / "out/a").exists()


def test_a_full_disk_that_shows_only_when_data_are_synchronised_is_named(
    downloader: Downloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    (tmp_path / "m").mkdir()
    (tmp_path / "m/a").write_bytes(BODY)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"out/a.*Disk quota exceeded.*start again"):
        downloader.get([str(tmp_path / "m")], "a", tmp_path / "out/a")
    assert not (tmp_path / "out/a").exists()


def test_a_file_of_a_local_mirror_that_may_not_be_read(
    downloader: Downloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_bytes(BODY)
    real_open, forbidden = Path.open, tmp_path / "first/a"

    def open_others(self: Path, *args, **kwargs):
        if self == forbidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real_open(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_others)
    reason = rf"^cannot be read \(Permission denied\).* \({forbidden}\)"
    with pytest.raises(UnavailableError, match=reason) as caught:
        downloader.get([str(tmp_path / "first")], "a", tmp_path / "out/a")
    assert not caught.value.is_absent
    assert not caught.value.is_final  # as of a network's file system that comes back
    downloader.get([str(tmp_path / "first"), str(tmp_path / "second")], "a", tmp_path / "out/a")
    assert (tmp_path / "out/a").read_bytes() == BODY


def test_output_that_cannot_be_a_folder(downloader: Downloader, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/a").write_bytes(b"x")
    (tmp_path / "out").write_bytes(b"a file")
    with pytest.raises(InputError, match="cannot be written"):
        downloader.get([str(tmp_path / "m")], "a", tmp_path / "out/a")


def test_roots(tmp_path: Path) -> None:
    assert local_folder("https://x.org/pub") is None
    assert local_folder("file:///a%20b/c") == Path("/a b/c")
    assert local_folder(str(tmp_path)) == tmp_path
    assert local_folder("relative") == Path.cwd() / "relative"
    with pytest.raises(InputError, match="'data'"):
        local_folder("file://data/wwpdb")
    with pytest.raises(InputError, match="'ftp'"):
        local_folder("ftp://ftp.wwpdb.org/pub")
