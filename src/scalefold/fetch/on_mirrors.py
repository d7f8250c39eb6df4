"""Which of the chains' files exist on mirrors that are folders of this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Final

from scalefold.config.data import DataConfig
from scalefold.config.mirror_roots import check_roots, local_folder
from scalefold.errors import InputError, counted, listed
from scalefold.fetch.chain_files import RawFile, chain_files
from scalefold.fetch.fetched import Kind
from scalefold.fetch.shared_alignments import SharedAlignments
from scalefold.raw.chains import ChainRow, Split
from scalefold.raw.raw_folder import STRUCTURE_SUFFIXES, in_other_formats

_FIXES: Final[Mapping[Kind, str]] = {
    "structures": "data.mirrors.mmcif, or data.mirrors.mmcif_path ('{entry}.cif.gz', or "
    "'{entry}.pdb', suits a folder that has the files themselves)",
    "alignments": "the name in data.alignments or data.template_hits (null does without), or the "
    "path, data.mirrors.alignment_path ('{chain}/a3m/{name}.a3m' suits a folder with a folder for "
    "each chain) or hhr_path",
}
"""What to correct if a mirror has no file of a kind."""


def check_mirrors(data: DataConfig, only: Kind | None = None) -> None:
    """Raise an InputError if a mirror that a fetch would use is a folder that is not there."""
    if only != "alignments":
        check_roots(data.mirrors.mmcif, "data.mirrors.mmcif")
    if only != "structures":
        check_roots(data.mirrors.alignments, "data.mirrors.alignments")


def check_files(
    chains: Sequence[ChainRow], data: DataConfig, only: Kind | None = None, raw: Path | None = None
) -> None:
    """Raise an InputError as `check_mirrors`, or if mirrors have too little to train on.

    They have too little if no chain has files of some kind, or no training chain has all that it
    needs. Files that are in the folder ``raw`` count as well.
    """
    check_mirrors(data, only)
    for kind in _FIXES if only is None else (only,):
        absent = absent_files(chains, data, kind, raw)
        if absent:
            number = counted(len(chains), "chain")
            said = f"the mirrors have none of these files for any of the {number}; correct"
            if kind == "structures" or _knows_no_chain(absent, data):
                what = "chain of this list was found"
                hint = ""
                if kind == "alignments":
                    what = "alignments of this list's chains were found"
                    hint = " To do without, set search.query_alone and template_hits: null."
                said = (
                    f"{data.chains}: no {what} on the mirrors ({number}).{hint} Name the chains as "
                    "the mirrors do, or correct"
                )
            raise InputError(f"{said} {_FIXES[kind]}:" + listed([_absent(path) for path in absent]))
    train = [row for row in chains if row.split == "train"]
    has_files = _completeness(chains, data, only, raw)
    if train and has_files is not None and not any(map(has_files, train)):
        first = chain_files(train[0], data, Path(), only)
        needed = [file.remotes[0] for file in first if file.local.suffix != ".hhr"]
        raise InputError(
            f"none of {len(train)} training chains has its files on the mirrors, so no chain is "
            f"left to train on; of {train[0].chain_key} these were looked for: "
            f"{', '.join(needed)}. Bring them there, correct data.mirrors, or list other chains"
            + listed(other_formats(train, data))
        )


def can_be_evaluated(
    chains: Sequence[ChainRow], data: DataConfig, splits: Sequence[Split], only: Kind | None = None
) -> bool:
    """Whether some chain of these splits has its files, or may have them on a mirror elsewhere."""
    has_files = _completeness(chains, data, only)
    rows = [row for row in chains if row.split in splits]
    return bool(rows) if has_files is None else any(map(has_files, rows))


def _knows_no_chain(absent: Sequence[Path], data: DataConfig) -> bool:
    """Whether all kinds of alignments are absent, and the folders for them too."""
    num_kinds = len(data.alignments) + (data.template_hits is not None)
    return len(absent) == num_kinds and not any(path.parent.is_dir() for path in absent)


def _absent(path: Path) -> str:
    """Name a file that does not exist, and similar files that do."""
    similar = sorted(file.name for file in path.parent.glob(f"*{path.suffix}"))
    there = in_other_formats(path) or similar
    return f"{path}, for example" + (f"; there is {', '.join(there[:3])}" if there else "")


def absent_files(
    chains: Sequence[ChainRow], data: DataConfig, only: Kind, raw: Path | None = None
) -> list[Path]:
    """Return one expected path for each kind of file that no chain has.

    A kind is the structures, or a name of alignments or template hits. The result is empty if one
    mirror cannot be looked into: one on the web, or a missing folder. Files in the folder ``raw``
    count as well.
    """
    folders = [local_folder(root) for root in _roots(data, only)]
    if not all(folder is not None and folder.is_dir() for folder in folders):
        return []
    expected: dict[str, list[Path]] = {}
    found: set[str] = set()
    shared = SharedAlignments.of(data, chains)
    for row in chains:
        for file in chain_files(row, data, raw or Path(), only, shared):
            kind = only if only == "structures" else file.local.name
            if kind not in found:
                places = [Path(str(root), remote) for root in folders for remote in file.remotes]
                expected.setdefault(kind, places)
                places += [file.local] if raw is not None else []
                if any(place.is_file() for place in places):
                    found.add(kind)
        if found and found == expected.keys():
            return []
    return [places[0] for kind, places in expected.items() if kind not in found]


def lacking_files(
    chains: Sequence[ChainRow], data: DataConfig, only: Kind
) -> list[ChainRow] | None:
    """Return the chains without a structure, or without any alignment, on the mirrors.

    None if one mirror cannot be looked into: one on the web, or a missing folder.
    """
    has_files = _completeness(chains, data, only)
    return None if has_files is None else [row for row in chains if not has_files(row)]


def other_formats(chains: Sequence[ChainRow], data: DataConfig) -> list[str]:
    """Name structures that mirrors have in another format only than they are looked for."""
    folders = [folder for folder in map(local_folder, data.mirrors.mmcif) if folder is not None]
    found: dict[Path, list[str]] = {}
    for row in chains:
        (file,) = chain_files(row, data, Path(), "structures")
        places = [folder / remote for folder in folders for remote in file.remotes]
        others = [(place, in_other_formats(place)) for place in places]
        if not any(place.is_file() for place in places):
            found |= {place: names for place, names in others if names}
    return [f"{place} is looked for, {', '.join(names)} is there" for place, names in found.items()]


def _completeness(
    chains: Sequence[ChainRow], data: DataConfig, only: Kind | None = None, raw: Path | None = None
) -> Callable[[ChainRow], bool] | None:
    """Return a test whether mirrors or ``raw`` have a chain's structure and an alignment."""
    kinds = _FIXES if only is None else (only,)
    folders = {root: local_folder(root) for kind in kinds for root in _roots(data, kind)}
    if not all(folder is not None and folder.is_dir() for folder in folders.values()):
        return None

    shared = SharedAlignments.of(data, chains)

    def is_there(file: RawFile) -> bool:
        places = (Path(str(folders[r]), remote) for r in file.roots for remote in file.remotes)
        is_fetched = raw is not None and file.local.is_file()
        return is_fetched or any(place.is_file() for place in places)

    def is_complete(row: ChainRow) -> bool:
        files = chain_files(row, data, raw or Path(), only, shared)
        structures = [file for file in files if file.local.name.endswith(STRUCTURE_SUFFIXES)]
        alignments = [file for file in files if file.local.suffix == ".a3m"]
        return all(any(map(is_there, group)) for group in (structures, alignments) if group)

    return is_complete


def local_sources(
    chains: Sequence[ChainRow], data: DataConfig, only: Kind, shared: SharedAlignments | None = None
) -> list[Path]:
    """Return the files of local mirrors that `fetch` would read for ``chains``, sorted.

    A workflow makes them inputs of its fetch jobs, so that a changed file is fetched again. A
    relative root gives relative paths. If mirrors are missing folders, these are returned instead:
    without them nothing can be fetched.
    """
    folders = [folder for folder in map(local_folder, _roots(data, only)) if folder is not None]
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing or not folders:
        return missing
    sources: set[Path] = set()
    groups = (chain_files(row, data, Path(), only, shared) for row in chains)
    for file in {file.local: file for group in groups for file in group}.values():
        for root, remote in product(file.roots, file.remotes):
            folder = local_folder(root)
            if folder is not None and (folder / remote).is_file():
                sources.add((folder if "://" in root else Path(root)) / remote)
                break
    return sorted(sources)


def _roots(data: DataConfig, only: Kind) -> Sequence[str]:
    return data.mirrors.mmcif if only == "structures" else data.mirrors.alignments
