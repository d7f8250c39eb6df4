"""The report of a run in a browser, renewed while the training goes on.

Only this machine can reach the server: it listens on 127.0.0.1. It writes nothing into the run.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from scalefold.errors import InputError
from scalefold.report.run import write_report

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
_NAMES: Final = (HOST, "localhost")
_RELOAD: Final = """<script>
// The page is loaded again as soon as the run has something new.
setInterval(async () => {
  const found = await fetch("version").then((answer) => answer.text()).catch(() => null);
  if (found !== null && found !== "%d") location.reload();
}, 3000);
</script>
</body>"""


class Monitor:
    """Keeps the report of a run up to date, and serves it.

    Parameters
    ----------
    run, key, shards, beside
        As for `write_report`.
    port : int
        0: any free one.
    every_seconds : float
        Between two looks at the run's files.

    Raises
    ------
    InputError
        As `write_report`; or the port is taken.
    """

    def __init__(
        self,
        run: Path,
        key: str | None,
        shards: Path | None,
        port: int,
        every_seconds: float,
        beside: Path | None = None,
    ) -> None:
        self._run, self._key, self._shards, self._beside = run, key, shards, beside
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._version, self._seen = 0, self._state()
        self._page = self._made()
        try:
            self._server = ThreadingHTTPServer((HOST, port), self._handler())
        except OSError as error:
            raise InputError(
                f"monitor: port {port} of {HOST} cannot be used ({error.strerror}). Choose another "
                "with --port, or 0 for any"
            ) from error

    @property
    def address(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self._server.server_port}/"

    def serve(self) -> None:
        """Serve until `stop` is called."""
        looking = threading.Thread(target=self._look, daemon=True)
        looking.start()
        try:
            self._server.serve_forever()
        finally:
            self._ended.set()
            self._server.server_close()
            looking.join()

    def stop(self) -> None:
        """End `serve`, which another thread runs."""
        self._server.shutdown()

    def _look(self) -> None:
        while not self._ended.wait(self._every_seconds):
            try:
                state = self._state()
                if state != self._seen:
                    self._page = self._made()
                    self._seen, self._version = state, self._version + 1
            except (InputError, OSError) as error:
                # A second training run, or a file that was deleted meanwhile: the last page stays.
                logger.warning("%s", error)

    def _state(self) -> list[tuple[str, int, int]]:
        """What a new record, checkpoint or evaluation changes."""
        names = ("weights/*/*.jsonl", "weights/*/*.ready", "evaluation/*/*.json", "ladder.json")
        paths = sorted(path for name in names for path in self._run.glob(name))
        return [(str(p), (stat := p.stat()).st_mtime_ns, stat.st_size) for p in paths]

    def _made(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            html = Path(folder) / "report.html"
            json = html.with_suffix(".json")
            write_report(self._run, self._key, self._shards, html, json, beside=self._beside)
            return html.read_text("utf-8")

    def _handler(monitor) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                # A page of another site may have a name that leads here.
                if self.headers.get("Host", "").partition(":")[0] not in _NAMES:
                    self.send_error(HTTPStatus.FORBIDDEN)
                elif self.path == "/version":
                    self._send(str(monitor._version), "text/plain")
                elif self.path == "/":
                    version, page = monitor._version, monitor._page
                    content, _, rest = page.rpartition("</body>")
                    self._send(content + _RELOAD % version + rest, "text/html")
                else:
                    self.send_error(HTTPStatus.NOT_FOUND)

            def _send(self, text: str, kind: str) -> None:
                content = text.encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                logger.debug(format, *args)

        return Handler
