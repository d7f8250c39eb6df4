"""Which raw files a chain has: their paths on a mirror and in the raw folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalefold.config.data import DataConfig
from scalefold.fetch.fetched import Kind
from scalefold.fetch.shared_alignments import SharedAlignments
from scalefold.raw.chain_key import extended_form
from scalefold.raw.chains import ChainRow
from scalefold.raw.raw_folder import alignment_folder, folder_hash, mmcif_path


@dataclass(frozen=True)
class RawFile:
    """A file to fetch.

    Parameters
    ----------
    roots
        Mirrors that may have it, in the order in which they are asked.
    remotes
        Paths that it may have below a mirror's root: of several layouts, or of several chains that
        share an alignment.
    """

    roots: Sequence[str]
    remotes: Sequence[str]
    local: Path


def chain_files(
    row: ChainRow,
    data: DataConfig,
    raw: Path,
    only: Kind | None = None,
    shared: SharedAlignments | None = None,
) -> list[RawFile]:
    """Return a chain's files: mmCIF first, then alignments, then template hits.

    Without ``shared``, each chain has alignments under its own name.
    """
    mirrors, entry, chain = data.mirrors, row.entry_id, row.chain_key
    files = []
    if only != "alignments":
        forms = {"hash": folder_hash(entry), "entry": entry, "extended": extended_form(entry)}
        remotes = [path.format(**forms) for path in mirrors.mmcif_paths]
        local = mmcif_path(raw, entry, mirrors.mmcif_paths[0])
        files.append(RawFile(mirrors.mmcif, remotes, local))
    names = [chain] if shared is None else shared.names(chain)
    if only == "structures" or row.split == "template" or not names:
        return files
    folder = alignment_folder(raw, chain)
    for name in data.alignments:
        remotes = [mirrors.alignment_path.format(chain=one, name=name) for one in names]
        files.append(RawFile(mirrors.alignments, remotes, folder / "a3m" / f"{name}.a3m"))
    if data.template_hits is not None:
        hits = data.template_hits
        remotes = [mirrors.hhr_path.format(chain=one, name=hits) for one in names]
        local = folder / "hhr" / f"{data.template_hits}.hhr"
        files.append(RawFile(mirrors.alignments, remotes, local))
    return files
