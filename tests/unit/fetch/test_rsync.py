"""Mirrors that are real rsync daemons on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from tests.unit.fetch.test_run import CIF, PDB, fill, settings, train

from scalefold.config.mirror_roots import local_folder, rsync_module
from scalefold.errors import InputError
from scalefold.fetch import rsync
from scalefold.fetch.mirrors import Downloader
from scalefold.fetch.plan import plan_fetch
from scalefold.fetch.run import fetch
from scalefold.fetch.summary import FetchSummary

needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync")
IDENTITY = f"uid = {os.getuid()}\ngid = {os.getgid()}\n" if os.getuid() == 0 else ""


@dataclass
class Daemon:
    """An rsync daemon whose module `ftp` is a folder."""

    folder: Path
    log: Path
    port: int

    @property
    def root(self) -> str:
        """A mirror's root, a folder below the module."""
        return f"rsync://127.0.0.1:{self.port}/ftp/archive"

    def write(self, name: str, content: bytes) -> None:
        """Write a file below the root."""
        path = self.folder / "archive" / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    folder = tmp_path / "module"
    (folder / "archive").mkdir(parents=True)
    found = Daemon(folder, tmp_path / "daemon.log", free_port())
    configuration = tmp_path / "rsyncd.conf"
    configuration.write_text(
        f"port = {found.port}\naddress = 127.0.0.1\nuse chroot = no\nlog file = {found.log}\n"
        f"transfer logging = yes\nlog format = sent %f %b\n{IDENTITY}[ftp]\npath = {folder}\n"
    )
    command = ["rsync", "--daemon", "--no-detach", f"--config={configuration}"]
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while running.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", found.port)).close()
                break
            time.sleep(0.02)
        assert running.poll() is None
        yield found
    finally:
        running.terminate()
        running.wait()


def run(chains: list[str], out: Path, *roots: str) -> FetchSummary:
    with closing(Downloader(attempts=2, backoff_seconds=0.001)) as downloader:
        rows = [train(key) for key in chains]
        return fetch(rows, settings(*roots), out, downloader=downloader)


def serve(daemon: Daemon, site, *chain_keys: str) -> None:
    fill(site, *chain_keys)
    for name, content in site.files.items():
        daemon.write(name, content)


@needs_rsync
def test_a_daemon_gives_what_it_has_and_the_next_mirror_the_rest(
    daemon: Daemon, site, tmp_path: Path
) -> None:
    serve(daemon, site, "1aaa_A", "2bbb_A")
    fill(site, "3ccc_A")
    (daemon.folder / "archive/pdb/2bbb_A/a3m/second_hits.a3m").unlink()
    chains = ["1aaa_A", "2bbb_A", "3ccc_A", "4ddd_A"]
    summary = run(chains, tmp_path / "raw", daemon.root, site.url)
    assert summary.complete == ("1aaa_A", "2bbb_A", "3ccc_A")
    assert [rejection.chain_key for rejection in summary.rejected] == ["4ddd_A"]
    assert summary.failures == {}
    asked = {path for path, _ in site.requests}
    assert not any("1aaa" in path for path in asked)
    assert "/pdb/2bbb_A/a3m/second_hits.a3m" in asked
    assert f"{PDB}/cc/3ccc.cif.gz" in asked
    assert (tmp_path / "raw/mmcif/aa/1aaa.cif.gz").read_bytes() == CIF
    assert not list((tmp_path / "raw").glob(".rsync*"))
    sent = daemon.log.read_text().count(" sent ")
    run(chains[:2], tmp_path / "raw", daemon.root, site.url)
    assert daemon.log.read_text().count(" sent ") == sent


@needs_rsync
def test_what_an_interruption_left_is_not_sent_again(daemon: Daemon, tmp_path: Path) -> None:
    half = 1_000_000
    content = np.random.default_rng(0).bytes(2 * half)
    daemon.write("d/large", content)
    daemon.write("d/small", b"small")
    staging = tmp_path / "staging"
    partial = staging / "archive/d/.rsync-partial/large"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(content[:half])
    came: list[int] = []

    def pull() -> rsync.Pulled:
        names = ["d/large", "d/small"]
        return rsync.pull(daemon.root, names, staging, 1, lambda n: None, lambda: came.append(1))

    pulled = pull()
    assert pulled.errors == {}
    assert (pulled.folder / "d/large").read_bytes() == content
    (sent,) = (
        int(line.split()[-1]) for line in daemon.log.read_text().splitlines() if "large" in line
    )
    assert sent < 1.1 * half
    assert len(came) == 2
    assert pull().errors == {}
    assert len(came) == 2


@needs_rsync
def test_a_daemon_that_is_not_there_has_failed(site, tmp_path: Path) -> None:
    fill(site, "1aaa_A")
    root = f"rsync://127.0.0.1:{free_port()}/ftp"
    summary = run(["1aaa_A"], tmp_path / "raw", root, site.url)
    assert summary.complete == ("1aaa_A",)
    assert summary.failures.keys() == {root}
    with pytest.raises(InputError, match="try again"):
        run(["1aaa_A"], tmp_path / "other", root)


@needs_rsync
def test_a_dry_run_asks_for_sizes(daemon: Daemon, site, tmp_path: Path) -> None:
    serve(daemon, site, "1aaa_A")
    plan = plan_fetch([train("1aaa_A"), train("2bbb_A")], settings(daemon.root), tmp_path / "raw")
    structures = next(kind for kind in plan.kinds if kind.name == "structures")
    assert (structures.num_bytes, structures.share_had) == (len(CIF), 0.5)
    assert all(kind.failure == "" for kind in plan.kinds)


def test_no_program_rsync_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="apt install rsync"):
        run(["1aaa_A"], tmp_path / "raw", "rsync.wwpdb.org::ftp")


def test_roots() -> None:
    assert rsync_module("rsync://h.org:33444/ftp/data/") == ("rsync://h.org:33444/ftp/", "data/")
    assert rsync_module("h.org::ftp_data") == ("h.org::ftp_data/", "")
    assert rsync_module("https://h.org/ftp") is None
    assert rsync_module("/data/ftp") is None
    assert local_folder("h.org::ftp") is None
    for root in ("rsync://h.org", "rsync:///ftp", "rsync://-e sh/x"):
        with pytest.raises(InputError, match="module"):
            rsync_module(root)


def test_rsync_stands_before_the_web() -> None:
    with pytest.raises(ValidationError, match=r"h\.org::ftp"):
        settings("https://h.org", "h.org::ftp")
