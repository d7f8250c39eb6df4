"""The files of a predicted target: a folder that appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from scalefold.errors import InputError, counted
from scalefold.io.atomic import TEMPORARY_MARK, make_folder, sync_folder, write_bytes
from scalefold.predict.model_cif import model_cif
from scalefold.predict.pdb_file import pdb
from scalefold.predict.ranking import Measure, Ranked
from scalefold.predict.targets import Target

FORMAT: Final = 1
RECORD_FILE: Final = "prediction.json"
_DIGITS: Final = 4
_PAE_LIMIT_ANGSTROM: Final = 31.75  # of the open last bin, as AlphaFold DB states it


def write_target(
    out: Path,
    target: Target,
    aatype: Tensor,
    alignment_rows: int,
    measure: Measure,
    ranked: Sequence[Ranked],
    made_from: Mapping[str, Any],
    made_with: Mapping[str, Any],
) -> dict[str, Any]:
    """Write a target's folder and return its record, see `read_record`.

    Each prediction has ``rank_<number>_<weights>.cif`` (ModelCIF) and ``.pdb``, both with the pLDDT
    as B-factors. If the model has the head, ``.pae.json`` has the predicted aligned errors in
    AlphaFold DB's form.

    Parameters
    ----------
    out : Path
        The folder ``<name>`` is made in it.
    aatype : Tensor, shape (N,)
    alignment_rows : int
        Of the whole alignment.
    measure : str
        What the predictions are ranked by.
    made_from, made_with : mapping
        What the prediction depends on, and the code and device that made it.

    Raises
    ------
    InputError
        The disk is full or the folder cannot be written.
    """
    folder = out / target.name
    temporary = out / f".{target.name}{TEMPORARY_MARK}{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)  # of a killed process with this number
    make_folder(temporary)
    try:
        models = [_write_model(temporary, target.name, aatype, each) for each in ranked]
        record = {
            "format": FORMAT,
            "name": target.name,
            "length": target.length,
            "sequence": target.sequence,
            "alignment_rows": alignment_rows,
            "ranked_by": measure,
            "models": models,
            "made_from": made_from,
            "made_with": made_with,
        }
        content = json.dumps(record, indent=1, allow_nan=False)
        write_bytes(temporary / RECORD_FILE, content.encode())
        temporary.rename(folder)
        sync_folder(out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return record


def check_settings(out: Path, targets: Iterable[Target], now: Mapping[str, Any]) -> None:
    """Refuse a folder with predictions by other weights or settings, in one line for all of them.

    Parameters
    ----------
    now : mapping
        What the predictions of all targets depend on: the weights and settings in ``made_from``.

    Raises
    ------
    InputError
        Names what differs, what it was and what it is.
    """
    others: dict[str, str] = {}
    for target in targets:
        try:
            record = json.loads((out / target.name / RECORD_FILE).read_text("utf-8"))
            before = _settings(record["made_from"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # not there, or no prediction: `read_record` says so
        asked = _settings(now)
        differing = [
            f"{name} was {before.get(name)} and is {asked.get(name)}"
            for name in sorted(before.keys() | asked.keys())
            if before.get(name) != asked.get(name)
        ]
        if differing:
            others[target.name] = "; ".join(differing)
    if others:
        name, difference = next(iter(others.items()))
        raise InputError(
            f"{out}: has {counted(len(others), 'prediction')} by other weights or settings. For "
            f"{name}, {difference}. Move this folder away to predict again, choose another, or go "
            "back to what it was"
        )


def _settings(made_from: Mapping[str, Any]) -> dict[str, str]:
    """Settings that the predictions of all targets share, as texts by name."""
    values: dict[str, list[str]] = {
        "weights (sha256)": [digest[:12] for digest in made_from["weights"]],
        "early stop (Å)": [made_from["tolerance_angstrom"]],
    }
    for settings in made_from["settings"]:
        for name, value in settings.items():
            values.setdefault(name, []).append(value)
    return {name: ", ".join(map(str, found)) for name, found in values.items()}


def read_record(out: Path, target: Target, made_from: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the record of a target that was predicted before, None if it was not.

    Raises
    ------
    InputError
        The folder exists, but is of another prediction or damaged.
    """
    folder = out / target.name
    if not os.path.lexists(folder):
        return None
    fix = f"Move {folder} away, or choose another --out"
    try:
        record: dict[str, Any] = json.loads((folder / RECORD_FILE).read_text("utf-8"))
        before = record["made_from"]
        differing = [key for key in made_from if before.get(key) != made_from[key]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{folder}: is there, but not the folder of a prediction ({error}). {fix}"
        ) from None
    if differing:
        raise InputError(
            f"{folder}: was predicted before, with another {' and '.join(differing)}. {fix}"
        )
    return record


def former_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of a folder, whatever it was made from; None if it has none."""
    try:
        record: dict[str, Any] = json.loads((folder / RECORD_FILE).read_text("utf-8"))
        return record if record["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _write_model(folder: Path, name: str, aatype: Tensor, ranked: Ranked) -> dict[str, Any]:
    prediction, about = ranked.prediction, ranked.member.about()
    pae_file = f"{ranked.stem}.pae.json" if prediction.pae is not None else None
    atoms = aatype, prediction.positions, prediction.position_mask > 0, ranked.plddt
    files = {"model_cif": f"{ranked.stem}.cif", "pdb": f"{ranked.stem}.pdb"}
    details = f"{about['kind']} weights {about['file']}, sha256 {about['sha256']}"
    text = model_cif(name, *atoms, ptm=prediction.ptm, pae_file=pae_file, details=details)
    write_bytes(folder / files["model_cif"], text.encode())
    write_bytes(folder / files["pdb"], pdb(name, *atoms).encode())
    if prediction.pae is not None and pae_file is not None:
        write_bytes(folder / pae_file, _pae_json(prediction.pae).encode())
        files["pae"] = pae_file
    return {
        "rank": ranked.rank,
        "weights": about,
        "mean_plddt": round(ranked.mean_plddt, _DIGITS),
        "ptm": None if prediction.ptm is None else round(prediction.ptm, _DIGITS),
        "passes": prediction.num_passes,
        "files": files,
        "plddt": [round(value, 2) for value in ranked.plddt.tolist()],
    }


def _pae_json(pae: Tensor) -> str:
    """Predicted aligned errors as AlphaFold DB has them: whole Å, one row for each residue i."""
    rounded = torch.round(pae).int().tolist()
    entry = {"predicted_aligned_error": rounded, "max_predicted_aligned_error": _PAE_LIMIT_ANGSTROM}
    return json.dumps([entry], separators=(",", ":"))
