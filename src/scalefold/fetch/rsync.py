"""Files of an rsync daemon: one process fetches many into a folder, from which they are taken."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scalefold.config.mirror_roots import rsync_module
from scalefold.errors import InputError
from scalefold.fetch.part_file import MirrorError

_PARTIAL: Final = ".rsync-partial"
_MISSING: Final = re.compile(r'rsync: .*link_stat "/?(.+)" .*failed: No such file')
_SIZE: Final = re.compile(r"-\S+ +(\d{1,18}) ", re.ASCII)
_SOME_FAILED: Final = (23, 24)
"""Exit codes that mean that all other files have come."""
_WAIT_SECONDS: Final = 60


@dataclass(frozen=True)
class Pulled:
    """The files of a mirror that have come.

    Parameters
    ----------
    folder
        Where they are, under their paths below the mirror's root.
    errors
        Path -> why a file has not come.
    """

    folder: Path
    errors: Mapping[str, MirrorError]


def pull(
    root: str,
    names: Collection[str],
    folder: Path,
    attempts: int,
    wait: Callable[[int], None],
    advance: Callable[[], None],
) -> Pulled:
    """Fetch files from an rsync mirror. Files of an earlier call are not sent again.

    Parameters
    ----------
    root
        An rsync root, as :mod:`scalefold.config.mirror_roots` understands it.
    folder
        Made if needed. After an interruption a later call resumes from it.
    wait
        Called with the number of the try, before each but the first.
    advance
        Called for each file that comes.

    Raises
    ------
    InputError
        There is no program rsync, or the folder cannot be written.
    """
    module, below = _parts(root)
    wanted = [f"{below}{name}" for name in names]
    code, said = 0, [""]
    for attempt in range(attempts):
        if attempt:
            wait(attempt)
        code, said = _transfer(module, wanted, folder, advance)
        if code in (0, *_SOME_FAILED):
            break
    absent = {found[1] for line in said if (found := _MISSING.match(line))}
    errors: dict[str, MirrorError] = {}
    for name in names:
        path = folder / below / name
        if path.is_symlink() or not path.is_file():
            reason = "no such file" if below + name in absent else f"rsync, code {code}: {said[-1]}"
            errors[name] = MirrorError(f"{root}/{name}: {reason}", below + name in absent)
    return Pulled(folder / below, errors)


def stated_size(root: str, name: str) -> int:
    """Return the size in bytes that an rsync mirror states of a file.

    Raises
    ------
    MirrorError
        It lacks the file, or does not say.
    InputError
        There is no program rsync.
    """
    module, below = _parts(root)
    options = ("--list-only", "--no-human-readable", "--copy-links")
    said = _start(*options, "--", f"{module}{below}{name}").communicate()[0].splitlines()
    sizes = [found[1] for line in said if (found := _SIZE.match(line))]
    if len(sizes) != 1:
        is_absent = any("failed: No such file" in line for line in said)
        raise MirrorError(f"{root}/{name}: {said[0] if said else 'no answer'}", is_absent)
    return int(sizes[0])


def _parts(root: str) -> tuple[str, str]:
    parts = rsync_module(root)
    assert parts is not None, root
    return parts


def _transfer(
    module: str, names: Collection[str], folder: Path, advance: Callable[[], None]
) -> tuple[int, list[str]]:
    """Run rsync once; return its exit code and its messages."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
            listed.writelines(f"{name}\n" for name in names)
            listed.flush()
            # Links are followed there: none comes here.
            running = _start(
                "--times",
                "--copy-links",
                f"--partial-dir={_PARTIAL}",
                f"--files-from={listed.name}",
                "--out-format=> %n",
                "--",
                module,
                f"{folder.absolute()}/",  # else a colon would make it a host
            )
            try:
                assert running.stdout is not None
                said = []
                for line in running.stdout:
                    if line.startswith("> ") and not line.endswith("/\n"):
                        advance()
                    elif not line.startswith("> ") and line.strip():
                        said.append(line.strip())
                return running.wait(), said or [""]
            finally:
                if running.poll() is None:
                    running.terminate()
                    running.wait()
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}). Correct the output folder, or make "
            "room"
        ) from error


def _start(*arguments: str) -> subprocess.Popen[str]:
    limits = (f"--timeout={_WAIT_SECONDS}", f"--contimeout={_WAIT_SECONDS}")
    try:
        return subprocess.Popen(
            ["rsync", "--no-motd", *limits, *arguments],
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except FileNotFoundError as error:
        raise InputError(
            "data.mirrors: a mirror is asked by rsync, and there is no program rsync. Install it "
            "(`apt install rsync`), or name the mirror's https:// address"
        ) from error
