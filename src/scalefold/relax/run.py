"""Relax the best model of each prediction in a folder; a target's folder is there whole or not."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console

from scalefold.errors import InputError
from scalefold.io.atomic import TEMPORARY_MARK, file_sha256, make_folder, sync_folder, write_bytes
from scalefold.predict.model_cif import model_cif, read_model_cif
from scalefold.predict.outputs import RECORD_FILE
from scalefold.predict.pdb_file import pdb
from scalefold.progress import LiveLine
from scalefold.raw.a3m import encode_sequence
from scalefold.raw.table import write_table
from scalefold.relax import check_openmm
from scalefold.relax.violations import violations

logger = logging.getLogger(__name__)

SUMMARY_FILE: Final = "relaxations.tsv"
RELAXED_FILE: Final = "relaxation.json"
_KINDS: Final = ("broken_bonds", "clashes", "violation_loss")
COLUMNS: Final = (
    "name",
    "fate",
    *(f"{kind}_{when}" for kind in _KINDS for when in ("before", "after")),
    "moved_angstrom",
    "reason",
)


def relax_predictions(
    predictions: Path, out: Path, threads: int | None = None, console: Console | None = None
) -> list[dict[str, str]]:
    """Relax what ``scalefold predict`` wrote; one that cannot be is logged, and the rest goes on.

    Parameters
    ----------
    out : Path
        Gets a folder for each too, with ModelCIF, PDB and ``relaxation.json``, and the table. A
        folder that is there from the same file stays.

    Returns
    -------
    list of dict
        The lines of the table, by `COLUMNS`; ``fate`` is ``relaxed``, ``there`` or ``failed``.

    Raises
    ------
    InputError
        OpenMM is not installed, there are no predictions, or the folder cannot be written.
    """
    check_openmm()
    folders = sorted(path.parent for path in predictions.glob(f"*/{RECORD_FILE}"))
    if not folders:
        raise InputError(
            f"{predictions}: has no predictions, <name>/{RECORD_FILE}. Name the folder that "
            "`scalefold predict --out` wrote"
        )
    make_folder(out)
    lines: list[dict[str, str]] = []
    try:
        with LiveLine("relaxing", len(folders), console) as progress:
            for folder in folders:
                try:
                    lines.append(_relax(folder, out / folder.name, threads))
                except InputError as error:
                    logger.warning("%s failed: %s", folder.name, error)
                    reason = " ".join(str(error).split())
                    lines.append({"name": folder.name, "fate": "failed", "reason": reason})
                progress.show(len(lines), f"{folder.name}: {lines[-1]['fate']}")
    finally:
        rows = ([line.get(column, "") for column in COLUMNS] for line in lines)
        write_table(out / SUMMARY_FILE, COLUMNS, rows)
    return lines


def _relax(source: Path, target: Path, threads: int | None) -> dict[str, str]:
    """Relax one target, unless it is there; returns its line."""
    try:
        prediction = json.loads((source / RECORD_FILE).read_text("utf-8"))
        path = source / prediction["models"][0]["files"]["model_cif"]
        sha256 = file_sha256(path)
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise InputError(f"{source}: not the folder of a prediction ({error})") from error
    fate = "there" if os.path.lexists(target) else "relaxed"
    if fate == "relaxed":
        temporary = target.with_name(f".{target.name}{TEMPORARY_MARK}{os.getpid()}")
        make_folder(temporary)
        try:
            record = {"made_from": sha256, **_write(temporary, prediction, path, threads)}
            write_bytes(temporary / RELAXED_FILE, json.dumps(record, indent=1).encode())
            temporary.rename(target)
            sync_folder(target.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    try:
        record = json.loads((target / RELAXED_FILE).read_text("utf-8"))
        is_same = record["made_from"] == sha256
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        is_same = False
    if not is_same:
        raise InputError(
            f"{target}: is there, but not made from {path}. Move it away, or choose another --out"
        )
    counts = {f"{kind}_{w}": str(record[w][kind]) for kind in _KINDS for w in ("before", "after")}
    moved = str(record["moved_angstrom"])
    return {"name": source.name, "fate": fate, **counts, "moved_angstrom": moved}


def _write(
    folder: Path, prediction: dict[str, Any], path: Path, threads: int | None
) -> dict[str, Any]:
    """Relax a prediction's best model and write its files; returns what changed."""
    import openmm

    from scalefold.relax.amber import relax

    aatype = torch.from_numpy(encode_sequence(prediction["sequence"])).long()
    positions, mask = read_model_cif(path, len(aatype))
    relaxed, energies, rounds = relax(aatype, positions, mask, threads)
    name, model = prediction["name"], prediction["models"][0]
    atoms = aatype, relaxed, mask, torch.tensor(model["plddt"])
    details = f"{path.name}, relaxed by OpenMM {openmm.version.full_version} with AMBER99SB"
    text = model_cif(name, *atoms, ptm=model["ptm"], details=details)
    write_bytes(folder / path.name, text.encode())
    write_bytes(folder / model["files"]["pdb"], pdb(name, *atoms).encode())
    moved = (relaxed - positions)[mask].square().sum(-1).mean().sqrt()
    return {
        "before": violations(aatype, positions, mask),
        "after": violations(aatype, relaxed, mask),
        "moved_angstrom": round(float(moved), 4),
        "rounds": rounds,
        "energies_kj_per_mol": [round(energy, 3) for energy in energies],
    }
