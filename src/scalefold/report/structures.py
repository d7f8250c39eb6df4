"""The chains whose structures an evaluation has kept, for the page's viewer."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalefold.evaluate.shown_structures import MAP_SCALE

Row = list[float | None]


@dataclass(frozen=True, eq=False)
class ViewerChain:
    """A chain of the viewer.

    Attributes
    ----------
    chain_key, split, place : str
        ``place`` in its split is best, median or worst. A prediction alone has neither.
    observed : int or None
        Residues with a C-alpha in the experiment. None of a prediction alone.
    lddt_ca, mean_plddt : float or None
        0 to 1, and 0 to 100.
    lddt, plddt : list of (float or None)
        By residue, 0 to 100 both. A prediction alone has no ``lddt``.
    sequence, predicted, true : str
        See `scalefold.evaluate.shown_structures.shown_chains`. A prediction alone has an empty
        ``true``.
    maps : dict of str to array, shape (M, M)
        ``distance``, ``true_distance``, and with the head ``pae``, ``true_pae``: Å, NaN where not
        known.
    """

    chain_key: str
    split: str
    place: str
    observed: int | None
    lddt_ca: float | None
    mean_plddt: float | None
    lddt: Row
    plddt: Row
    sequence: str
    predicted: str
    true: str
    maps: dict[str, NDArray[np.float64]]


def structures(evaluation: Mapping[str, Any]) -> list[ViewerChain]:
    """Gather the kept structures with their scores, those of validation first.

    Evaluations of older versions kept none.
    """
    chains = {chain["chain_key"]: chain for chain in evaluation["chains"]}
    found = []
    for shown in evaluation.get("shown", ()):
        chain = chains[shown["chain_key"]]
        residues = chain["per_residue"]
        found.append(
            ViewerChain(
                shown["chain_key"],
                shown["split"],
                shown["place"],
                chain.get("observed"),
                chain["lddt_ca"],
                chain["mean_plddt"],
                [None if value is None else 100.0 * value for value in residues["lddt_ca"]],
                residues["plddt"],
                shown["sequence"],
                shown["predicted"],
                shown["true"],
                {name: _map(text) for name, text in shown["maps"].items()},
            )
        )
    return sorted(found, key=lambda one: one.split != "validation")


def _map(text: str) -> NDArray[np.float64]:
    values = np.frombuffer(base64.b64decode(text), np.uint8).astype(np.float64)
    size = round(len(values) ** 0.5)
    return np.where(values == 255, np.nan, values / MAP_SCALE).reshape(size, size)


def viewer_data(shown: Sequence[ViewerChain]) -> str:
    """What ``viewer.js`` reads, as JSON that can stand inside a script element."""
    fields = ("sequence", "predicted", "true", "lddt", "plddt")
    text = json.dumps([{name: getattr(one, name) for name in fields} for one in shown])
    return text.replace("<", "\\u003c")


def viewer_library() -> str:
    """The source of 3Dmol.js below its licence, which goes with every copy."""
    vendor = resources.files(__package__) / "vendor"
    licence = (vendor / "3Dmol-LICENSE").read_text("utf-8")
    return f"/*\n{licence}*/\n{(vendor / '3Dmol-min.js').read_text('utf-8')}"
