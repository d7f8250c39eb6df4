"""The page of predictions: what ``scalefold predict`` made, in one file to look at."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from scalefold import __version__
from scalefold.chem.residues import CA, C, N, O
from scalefold.errors import counted
from scalefold.evaluate.shown_structures import on_principal_axes
from scalefold.io.atomic import write_bytes
from scalefold.predict.model_cif import read_model_cif
from scalefold.predict.pair_maps import sampled_residues
from scalefold.predict.run import Outcome
from scalefold.report.page import render
from scalefold.report.structure_figures import Drawn, drawn
from scalefold.report.structures import ViewerChain, viewer_data, viewer_library

logger = logging.getLogger(__name__)

PAGE_FILE: Final = "predictions.html"
MOST_BYTES: Final = 10_000_000


def write_predictions(
    out: Path, outcomes: Sequence[Outcome], command: str, most_bytes: int = MOST_BYTES
) -> int:
    """Write ``predictions.html`` beside the table of predictions, atomically.

    Parameters
    ----------
    most_bytes : int
        The first predictions are shown with their structures, as many as the page can hold.

    Returns
    -------
    int
        How many are shown.

    Raises
    ------
    InputError
        The page cannot be written.
    """
    number = counted(sum(outcome.record is not None for outcome in outcomes), "prediction")
    logger.info("writing %s, of %s", out / PAGE_FILE, number)
    content = {
        "name": out.resolve().name,
        "outcomes": outcomes,
        "by_name": {outcome.name: outcome for outcome in outcomes if outcome.record},
        "provenance": {**_provenance(outcomes), "command": command, "version": __version__},
    }
    left = most_bytes - len(_page([], content)) - len(viewer_library())
    shown: list[Drawn] = []
    for one in _all_drawn(out, outcomes):
        left -= _size(one)
        if left < 0:
            break
        shown.append(one)
    while len(page := _page(shown, content)) > most_bytes and shown:
        shown.pop()  # the few bytes that stand around figures and atoms are many in sum
    write_bytes(out / PAGE_FILE, page)
    return len(shown)


def _page(shown: Sequence[Drawn], content: Mapping[str, Any]) -> bytes:
    return render("predictions.html.j2", shown, **content).encode("utf-8", "replace")


def _provenance(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    """What the predictions were made with; several values if they were made by several runs."""
    found: dict[str, dict[str, None]] = {
        key: {} for key in ("weights", "precision", "scalefold", "commit", "torch", "device")
    }
    for record in (outcome.record for outcome in outcomes if outcome.record):
        for about in (model["weights"] for model in record["models"]):
            found["weights"][f"{about['label']}: {about['file']}, sha256 {about['sha256']}"] = None
        values = [("precision", one.get("precision")) for one in record["made_from"]["settings"]]
        for key, value in (*values, *record["made_with"].items()):
            if value is not None and key in found:
                found[key][value] = None
    return {key: list(values) for key, values in found.items()}


def _all_drawn(out: Path, outcomes: Sequence[Outcome]) -> Iterator[Drawn]:
    number = 0
    for outcome in outcomes:
        if outcome.record is None:
            continue
        try:
            structure = _structure(out / outcome.name, outcome.record)
        except (OSError, ValueError, RuntimeError, LookupError, TypeError) as error:
            logger.warning("%s: not in the page's viewer: %s", outcome.name, error)
            continue
        yield drawn(structure, number)
        number += 1


def _structure(folder: Path, record: Mapping[str, Any]) -> ViewerChain:
    """Read the best model of a prediction."""
    best, sequence = record["models"][0], record["sequence"]
    positions, mask = read_model_cif(folder / best["files"]["model_cif"], len(sequence))
    backbone = positions.masked_fill(~mask[..., None], torch.nan)[:, [N, CA, C, O]]
    backbone = on_principal_axes(positions[mask[:, CA], CA]).apply(backbone)
    maps = {}
    if "pae" in best["files"]:
        (entry,) = json.loads((folder / best["files"]["pae"]).read_text("utf-8"))
        residues = sampled_residues(len(sequence)).numpy()
        error = np.array(entry["predicted_aligned_error"], dtype=np.float64)
        maps["pae"] = error[np.ix_(residues, residues)]
    return ViewerChain(
        record["name"],
        split="",
        place="",
        observed=None,
        lddt_ca=None,
        mean_plddt=best["mean_plddt"],
        lddt=[],
        plddt=best["plddt"],
        sequence=sequence,
        predicted=base64.b64encode(backbone.numpy().astype("<f4").tobytes()).decode(),
        true="",
        maps=maps,
    )


def _size(one: Drawn) -> int:
    """Bytes of a prediction's figures and atoms."""
    maps = "" if one.maps is None else one.maps.svg
    return len((one.residues.svg + maps + viewer_data([one.structure])).encode())
