"""Where the programs are, and which package has a missing one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from scalefold.errors import InputError

_PACKAGES: Final = {
    "hhblits": "hhsuite",
    "hhsearch": "hhsuite",
    "hhmake": "hhsuite",
    "hhalign": "hhsuite",
    "cstranslate": "hhsuite",
    "jackhmmer": "hmmer",
    "hmmbuild": "hmmer",
    "hmmsearch": "hmmer",
    "mmseqs": "mmseqs2",
}
"""Debian's package of each program."""
_LIBEXEC: Final = Path("libexec/hhsuite")
# Builds in Debian's hhsuite, the best first, and the processor's flag that each needs.
_BUILDS: Final = {
    "avx2": "avx2",
    "avx": "avx",
    "sse4.1": "sse4_1",
    "ssse3": "ssse3",
    "sse3": "pni",
    "plain": "",
}
_DATA_FOLDERS: Final = ("share/hhsuite/data", "lib/hhsuite/data", "data")
_DEFAULT_ROOTS: Final = (Path("/usr"), Path("/usr/local"))


def find_binary(name: str) -> Path:
    """Return the path of a program.

    Debian's HH-suite has a build for each kind of processor behind a shell script, and no
    ``cstranslate`` on PATH. So the build itself is taken.

    Raises
    ------
    InputError
        It is not installed; says which package has it.
    """
    on_path = shutil.which(name)
    if _PACKAGES[name] == "hhsuite":
        built = _simd_build(name, None if on_path is None else Path(on_path))
        if built is not None:
            return built
    if on_path is None:
        package = _PACKAGES[name]
        raise InputError(
            f"{name} is not installed. Debian and Ubuntu have it in the package {package} "
            f"(apt-get install {package}), Bioconda too; or put its folder on PATH"
        )
    return Path(on_path)


def find_hhsuite_data(name: str) -> Path:
    """Return a data file of HH-suite, such as ``cs219.lib``.

    Raises
    ------
    InputError
        It is not there; says which package has it.
    """
    roots = [find_binary("hhblits").resolve().parents[1], *_roots()]
    for folder in (root / below for root in roots for below in _DATA_FOLDERS):
        if (folder / name).is_file():
            return folder / name
    raise InputError(
        f"HH-suite's file {name} is not there. Debian and Ubuntu have it in the package "
        "hhsuite-data (apt-get install hhsuite-data)"
    )


def _simd_build(name: str, on_path: Path | None) -> Path | None:
    """Return Debian's build of a program for this processor, ``None`` if there is none."""
    dispatched = on_path is not None and on_path.resolve().parent.name == _LIBEXEC.name
    if on_path is not None and not dispatched:
        return None  # the user's own installation
    flags = _processor_flags()
    for root in _roots():
        for build, flag in _BUILDS.items():
            path = root / _LIBEXEC / f"{name}-{build}"
            if (not flag or flag in flags) and path.is_file():
                return path
    return None


def _roots() -> list[Path]:
    hhblits = shutil.which("hhblits")
    first = [] if hhblits is None else [Path(hhblits).parents[1]]
    return [*first, *_DEFAULT_ROOTS]


def _processor_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}
