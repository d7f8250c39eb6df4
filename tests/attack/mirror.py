"""A mirror on this machine that gives any answer, before one that has the file."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from scalefold.fetch.mirrors import Downloader

BODY: Final = bytes(range(256)) * 8
NAMES: Final = ("x.a3m", "x.cif.gz")
_HEADERS: Final[Mapping[str, str]] = {
    "whole": '200 OK\r\nETag: "v1"\r\nContent-Length: {size}',
    "dated": "200 OK\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nContent-Length: {size}",
    "range": '206 Partial Content\r\nETag: "v1"\r\nContent-Range: bytes 10-{last}/{size}',
    "no range": "416 Range Not Satisfiable\r\nContent-Range: bytes */10",
    "moved": "302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0",
    "busy": "503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0",
    "chunked": "200 OK\r\nTransfer-Encoding: chunked",
}


class OddMirror:
    """Gives a case's file ``answer`` to each request, word for word.

    Parameters
    ----------
    sound
        Folder that becomes the mirror that is asked after it.
    """

    def __init__(self, sound: Path) -> None:
        sound.mkdir()
        for name in NAMES:
            (sound / name).write_bytes(_content(name))
        self._sound, self._answer = sound, b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def cases(self) -> dict[str, dict[str, bytes]]:
        """Return answers, each with the beginning of a download that was broken off before."""
        cases = {}
        for name in NAMES:
            content = _content(name)
            sizes = {"size": len(content), "last": len(content) - 1}
            for kind, headers in _HEADERS.items():
                body = content[10:] if kind == "range" else content
                if kind == "chunked":
                    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content)
                head = f"HTTP/1.1 {headers.format(**sizes)}\r\n\r\n".encode()
                cases[f"{kind}, {name}"] = {
                    "answer": head + body,
                    f"{name}.part": content[:10],
                    f"{name}.part.validator": f'{self._url}/{name}\n"v1"'.encode(),
                }
        return cases

    def use(self, folder: Path) -> None:
        """Get the case's file: whatever the first mirror says, the second has it."""
        name = folder.name.rpartition(" ")[2]
        self._answer = (folder / "answer").read_bytes()
        downloader = Downloader(attempts=2, backoff_seconds=0.0, timeout_seconds=10.0)
        with closing(downloader), _only_this_machine():
            got = downloader.get([self._url, str(self._sound)], name, folder / name)
        content = (folder / name).read_bytes()
        assert got.num_bytes == len(content)
        if name.endswith(".gz"):
            assert gzip.decompress(content) == BODY

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection, contextlib.suppress(OSError):
                received = b""
                while b"\r\n\r\n" not in received and (block := connection.recv(65536)):
                    received += block
                connection.sendall(self._answer)


def _content(name: str) -> bytes:
    return gzip.compress(BODY, mtime=0) if name.endswith(".gz") else BODY


@contextmanager
def _only_this_machine() -> Iterator[None]:
    """Keep a damaged ``Location`` from reaching others: the network is down.

    No connection gets as far as certificates, which take ten times as long to load as all else.
    """
    connect = socket.create_connection

    def refuse_others(address: tuple[str, int], *arguments: Any, **options: Any) -> socket.socket:
        if address[0] != "127.0.0.1":
            raise OSError("network is unreachable")
        return connect(address, *arguments, **options)

    def bare(**options: Any) -> ssl.SSLContext:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    refuse = patch("socket.create_connection", refuse_others)
    with refuse, patch("ssl.create_default_context", bare):
        yield
