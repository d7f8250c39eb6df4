"""The plan of a fetch: how many files, about how many bytes, and whether the disk has room."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scalefold.config.data import DataConfig
from scalefold.errors import InputError
from scalefold.fetch.chain_files import RawFile, chain_files
from scalefold.fetch.fetched import Kind
from scalefold.fetch.mirrors import Downloader, UnavailableError
from scalefold.fetch.on_mirrors import check_mirrors
from scalefold.fetch.shared_alignments import SharedAlignments
from scalefold.raw.chains import ChainRow
from scalefold.raw.raw_folder import STRUCTURE_SUFFIXES

SAMPLE: Final = 300
"""Files of a kind that mirrors are asked about: enough for an error of 10 % for alignments."""


@dataclass(frozen=True)
class KindPlan:
    """The files of one kind: structures, or alignments or template hits of one name.

    Parameters
    ----------
    name
        ``structures``, ``uniref90_hits.a3m`` and so on.
    num_files
        All that the chains could have.
    num_there
        Those that the raw folder has.
    share_had
        Share of the others that mirrors have, by a sample.
    num_bytes, error_bytes
        About their size in all, and its standard error: zero if all were asked about.
    failure
        Why a mirror could not be asked; empty if none failed.
    """

    name: str
    num_files: int
    num_there: int
    share_had: float
    num_bytes: float
    error_bytes: float
    failure: str


@dataclass(frozen=True)
class FetchPlan:
    """All kinds, and the room on the disk of the raw folder."""

    kinds: tuple[KindPlan, ...]
    free_bytes: int

    @property
    def num_bytes(self) -> float:
        """About what is to be fetched."""
        return sum(kind.num_bytes for kind in self.kinds)

    def check(self, out: Path) -> None:
        """Raise an InputError if a mirror could not be asked, or the disk has not the room."""
        for kind in self.kinds:
            if kind.failure:
                raise InputError(
                    f"{kind.name}: a mirror could not be asked, so the sum is too small: "
                    f"{kind.failure}. Correct data.mirrors, or try again if the network was down"
                )
        if self.num_bytes > self.free_bytes:
            raise InputError(
                f"{out}: about {self.num_bytes / 1e9:,.1f} GB are to be fetched, "
                f"{self.free_bytes / 1e9:,.1f} GB are free. Make room, choose another folder, or "
                "list fewer chains"
            )


def plan_fetch(
    chains: Sequence[ChainRow],
    data: DataConfig,
    out: Path,
    *,
    only: Kind | None = None,
    shared: SharedAlignments | None = None,
    downloader: Downloader | None = None,
) -> FetchPlan:
    """Estimate what `scalefold.fetch.run.fetch` would fetch; nothing is written.

    Mirrors are asked about `SAMPLE` files of each kind. They are drawn at random, always the same.

    Raises
    ------
    InputError
        A mirror is a folder that is not there.
    """
    check_mirrors(data, only)
    kinds: dict[str, dict[Path, RawFile]] = {}
    for row in chains:
        for file in chain_files(row, data, out, only, shared):
            is_structure = file.local.name.endswith(STRUCTURE_SUFFIXES)
            kinds.setdefault("structures" if is_structure else file.local.name, {})[file.local] = (
                file
            )
    own = downloader or Downloader(connections=data.download_threads)
    try:
        plans = tuple(
            _plan(name, files, own, data.download_threads) for name, files in kinds.items()
        )
    finally:
        if downloader is None:
            own.close()
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    return FetchPlan(plans, shutil.disk_usage(there).free)


def _plan(
    name: str, files: Mapping[Path, RawFile], downloader: Downloader, threads: int
) -> KindPlan:
    missing = [file for local, file in files.items() if not local.exists()]
    asked = random.Random(0).sample(missing, min(SAMPLE, len(missing)))

    def size(file: RawFile) -> int | UnavailableError:
        try:
            first, *others = file.remotes
            return downloader.size(file.roots, first, others)
        except UnavailableError as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(size, asked))
    sizes = [answer for answer in answers if isinstance(answer, int)]
    failures = [a for a in answers if isinstance(a, UnavailableError) and not a.is_absent]
    each = [answer if isinstance(answer, int) else 0 for answer in answers]
    mean = sum(each) / len(each) if each else 0.0
    spread = math.sqrt(sum((n - mean) ** 2 for n in each) / max(1, len(each) - 1))
    unasked = 1.0 - len(each) / len(missing) if missing else 0.0  # nothing left, no error
    return KindPlan(
        name=name,
        num_files=len(files),
        num_there=len(files) - len(missing),
        share_had=len(sizes) / len(asked) if asked else 1.0,
        num_bytes=mean * len(missing),
        error_bytes=spread * len(missing) * math.sqrt(unasked / max(1, len(each))),
        failure=str(failures[0]) if failures else "",
    )
