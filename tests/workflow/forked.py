"""Snakemake in forks of a process that has imported it: to import it takes a second each time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["snakemake.cli", "snakemake.report", "smart_open", "jsonschema"])


def snakemake(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str] = os.environ
) -> tuple[int, str]:
    """Run ``python -m snakemake`` in a folder: exit code, and all that it and its jobs print."""
    with tempfile.TemporaryDirectory() as files:
        printed = [Path(files) / name for name in ("stdout", "stderr")]
        process = _FORKS.Process(
            target=_run, args=(list(arguments), folder, dict(environment), printed)
        )
        process.start()
        try:
            process.join()
        finally:
            if process.pid is not None and process.exitcode is None:
                os.killpg(process.pid, signal.SIGKILL)  # with its jobs
        assert process.exitcode is not None
        return process.exitcode, "".join(path.read_text() for path in printed)


def _run(
    arguments: list[str], folder: Path, environment: dict[str, str], printed: list[Path]
) -> None:
    from snakemake.cli import main

    os.setsid()
    for number, path in enumerate(printed, 1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [sys.argv[0], *arguments]
    main(arguments)
