from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Site:
    """Files by path, and how the next requests for each of them shall fail.

    Faults, used up one a request: an integer is an HTTP status; ("drop", n) sends n bytes of the
    body and closes the connection, ("stall", n) sends n bytes and then nothing; "ignore-range"
    answers a range request with the whole file,
    ("skip", n) with what begins n bytes behind what was asked for;
    "no-length" sends the body without its length, ended by closing; ("slow", s) sends a byte each
    s seconds; a dictionary replaces headers, the status where it has one, and the file's answer to
    a range: "Ignored-If-Range" gives the range of whatever the file is now. `headers` are added to
    answers to HEAD.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[object]] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site, path = self.site, self.path
        wanted = self.headers.get("Range")
        site.requests.append((path, wanted))
        faults = site.faults.get(path, [])
        fault = faults.pop(0) if faults else None
        if isinstance(fault, int):
            self._head(fault, {"Content-Length": "0"})
            return
        if path not in site.files:
            self._head(404, {"Content-Length": "0"})
            return
        body, etag = site.files[path], site.etags.get(path, '"v1"')
        headers = {"ETag": etag} if etag else {}
        status, start = 200, 0
        unasked = isinstance(fault, dict) and "Ignored-If-Range" in fault
        same = self.headers.get("If-Range") in (None, etag) or unasked
        if wanted and same and fault != "ignore-range":
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(body):
                self._head(416, {"Content-Length": "0", "Content-Range": f"bytes */{len(body)}"})
                return
            if isinstance(fault, tuple) and fault[0] == "skip":
                start += fault[1]
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        if fault != "no-length":
            headers["Content-Length"] = str(len(body) - start)
        if isinstance(fault, dict):
            headers |= {name: text for name, text in fault.items() if name != "status"}
            status = fault.get("status", status)
        self._head(status, headers)
        data = body[start:]
        if isinstance(fault, tuple) and fault[0] == "slow":
            self._drip(data, fault[1])
            return
        if isinstance(fault, tuple) and fault[0] in ("drop", "stall"):
            data = data[: fault[1]]
        self.wfile.write(data)
        self.wfile.flush()
        if isinstance(fault, tuple) and fault[0] == "stall":
            self.rfile.read(1)  # until the other side gives up
        if fault is not None:
            self.close_connection = True
            self.connection.shutdown(2)

    def do_HEAD(self) -> None:
        body = self.site.files.get(self.path)
        self.site.requests.append((self.path, "HEAD"))
        headers = {"Content-Length": str(len(body or b"")), **self.site.headers}
        self._head(404 if body is None else 200, headers)

    def _drip(self, data: bytes, seconds: float) -> None:
        try:
            for byte in data:
                self.wfile.write(bytes([byte]))
                time.sleep(seconds)
        except OSError:  # nobody listens any more
            self.close_connection = True

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An HTTP server on a free local port that misbehaves on demand; fill its ``files``."""
    monkeypatch.setenv("no_proxy", "*")  # the way to it is through no proxy of this machine's
    site = Site()
    handler = type("Handler", (_Handler,), {"site": site, "protocol_version": "HTTP/1.1"})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
