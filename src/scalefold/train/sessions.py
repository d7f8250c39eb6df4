"""The sessions of a training run, which may take many processes, one after the other.

``sessions.jsonl`` in the training's folder has a line for the start and one for the end of each. A
session that was killed has no end; the metrics log tells how far it came.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import FiniteFloat, TypeAdapter

from scalefold.errors import InputError
from scalefold.io.atomic import write_bytes

logger = logging.getLogger(__name__)

SESSIONS_FILE: Final = "sessions.jsonl"


@dataclass(frozen=True)
class Session:
    """A process of training, from its start to its end, or to its last sign of life.

    Attributes
    ----------
    started, ended : float
        Unix time, seconds.
    max_rss_mb : float or None
        Largest resident memory of the first of them; None where it was killed.
    train_chains, train_chains_drawn : int or None
        Chains of split ``train`` in the shards, and those of them that the filters of section
        ``sampling`` leave; None where it was not noted.
    made_with : dict
        Commit, torch's version, device, host and command, as far as they were noted.
    """

    started: FiniteFloat
    ended: FiniteFloat
    processes: int
    max_rss_mb: FiniteFloat | None
    train_chains: int | None
    train_chains_drawn: int | None
    made_with: dict[str, str | None]


_SESSION: Final = TypeAdapter(Session)
_MADE_WITH: Final = ("commit", "torch", "device", "host", "command")


def read_sessions(out: Path, logged: Sequence[float]) -> list[Session]:
    """Read what `session` noted.

    Parameters
    ----------
    logged : sequence of float
        Times of the metrics log: signs of life of sessions that were killed.

    Raises
    ------
    InputError
        If the file is damaged. A missing file is no error: nothing was trained.
    """
    path = out / SESSIONS_FILE
    if not path.is_file():
        return []
    try:
        events = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        starts = [place for place, event in enumerate(events) if event["event"] == "start"]
        sessions = []
        for place, following in zip(starts, [*starts[1:], len(events)]):
            start, end = events[place], {}
            if place + 1 < following:
                end = events[place + 1]
            until = events[following]["time"] if following < len(events) else math.inf
            heard = max((t for t in logged if start["time"] <= t < until), default=start["time"])
            sessions.append(
                _SESSION.validate_python(
                    {
                        "started": start["time"],
                        "ended": end.get("time", heard),
                        "processes": start["processes"],
                        "max_rss_mb": end.get("max_rss_mb"),
                        "train_chains": start.get("train_chains"),
                        "train_chains_drawn": start.get("train_chains_drawn"),
                        "made_with": {key: start.get(key) for key in _MADE_WITH},
                    }
                )
            )
        return sessions
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: left out, it is damaged ({error!r})") from None


@contextlib.contextmanager
def session(out: Path, step: Callable[[], int], **facts: Any) -> Iterator[None]:
    """Note the start and the end of a session.

    Raises
    ------
    InputError
        If the file cannot be written at the start.
    """
    path = out / SESSIONS_FILE
    made_by = {"host": platform.node(), "command": shlex.join(sys.argv)}
    _append(path, {"event": "start", "step": step(), "time": time.time(), **made_by, **facts})
    try:
        yield
    finally:
        kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        end = {"event": "end", "step": step(), "time": time.time(), "max_rss_mb": kibibytes / 1024}
        try:
            _append(path, end)
        except InputError as error:  # whatever has ended the training is of more interest
            logger.warning("the end of this session is not noted: %s", error)


def _append(path: Path, line: dict[str, Any]) -> None:
    # The whole file is written again, atomically: a half-written line would spoil it.
    before = path.read_bytes() if path.is_file() else b""
    write_bytes(path, before + f"{json.dumps(line)}\n".encode())
