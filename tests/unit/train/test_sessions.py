"""What sessions of a training leave in its folder."""

from __future__ import annotations

import json
import math
import platform
import resource
from pathlib import Path

import pytest

from scalefold.errors import InputError
from scalefold.train.sessions import SESSIONS_FILE, read_sessions, session


def test_a_session_tells_what_it_was_made_with(tmp_path: Path) -> None:
    facts = {"commit": "c0ffee", "torch": "2.11.0", "device": "Some GPU"}
    chains = {"train_chains": 23, "train_chains_drawn": 1}
    with session(tmp_path, lambda: 7, processes=2, **chains, **facts):
        pass
    [found] = read_sessions(tmp_path, [])
    assert found.processes == 2
    assert found.made_with.items() >= facts.items()
    assert found.made_with["host"] == platform.node()
    assert found.made_with["command"]
    assert (found.train_chains, found.train_chains_drawn) == (23, 1)
    assert found.started <= found.ended


def test_what_an_earlier_version_did_not_note_is_none(tmp_path: Path) -> None:
    line = '{"event": "start", "step": 0, "time": 10.0, "processes": 1}\n'
    (tmp_path / SESSIONS_FILE).write_text(line)
    [killed] = read_sessions(tmp_path, [11.0, 14.0])
    assert killed.ended == 14.0
    assert (killed.max_rss_mb, killed.train_chains, killed.train_chains_drawn) == (None, None, None)
    assert set(killed.made_with.values()) == {None}


def test_what_is_no_text_was_not_noted_by_a_session(tmp_path: Path) -> None:
    start = {"event": "start", "step": 0, "time": 1.0, "processes": 1, "commit": -math.inf}
    (tmp_path / SESSIONS_FILE).write_text(json.dumps(start) + "\n")
    with pytest.raises(InputError, match="damaged"):
        read_sessions(tmp_path, [])


def test_a_full_disk_at_the_end_of_a_session_leaves_the_others_readable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file-size limit is the kind of full disk that a test can have; the end goes beyond it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # Large, so that the limit concerns no other file of this process.
        with session(tmp_path, lambda: 0, processes=1, device=100_000 * "x"):
            size = (tmp_path / SESSIONS_FILE).stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "not noted" in caplog.text
    with session(tmp_path, lambda: 0, processes=1):
        pass
    first, second = read_sessions(tmp_path, [])
    assert (first.max_rss_mb, second.max_rss_mb is None) == (None, False)
