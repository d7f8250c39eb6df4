"""The few chains of an evaluation whose structures are kept for the report.

For each split, these are the best, the median and the worst chain by lDDT-C-alpha. Chains with less
than half of their residues observed are chosen only if there are no others. The evaluation's file
holds their backbones as float32 in base64: about 40 kB for 300 residues, predicted and true.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scalefold.chem.residues import CA, CB, RESTYPE_INDEX, RESTYPES_WITH_X, C, N, O
from scalefold.evaluate.metrics import Comparison
from scalefold.geometry.rigid import Rigid
from scalefold.geometry.superposition import superpose
from scalefold.predict.pair_maps import PairMaps, sampled_residues, true_aligned_error

MAP_SCALE: Final = 8
"""Maps are kept as bytes, in eighths of an Å; 255 is not known."""

_SLOTS: Final = [N, CA, C, O]
_COORDINATE_DIGITS: Final = 3


class Backbones(NamedTuple):
    """A prediction and its truth, superposed.

    Attributes
    ----------
    sequence : str
        One letter a residue.
    predicted, true : Tensor, shape (N, 4, 3), float32
        Atoms N, CA, C, O; Å, on the principal axes of the true C-alpha atoms, the longest first;
        NaN: no such atom.
    distance : Tensor, shape (M, M)
        True distance of the C-beta atoms of sampled residues, Å; NaN where not observed.
    maps : PairMaps or None
        Predictions for pairs of residues.
    """

    sequence: str
    predicted: Tensor
    true: Tensor
    distance: Tensor
    maps: PairMaps | None


def backbones(comparison: Comparison, maps: PairMaps | None = None) -> Backbones:
    """Superpose the C-alpha atoms of a prediction on those of the truth, and keep the backbones."""
    both = comparison.predicted_mask[:, CA] & comparison.true_mask[:, CA]
    moved = superpose(comparison.predicted[:, CA], comparison.true[:, CA], both)
    predicted = moved.unsqueeze(-1).apply(comparison.predicted[:, _SLOTS].flatten(0, 1))
    predicted = predicted.view(-1, len(_SLOTS), 3)
    seen = on_principal_axes(comparison.true[comparison.true_mask[:, CA], CA])

    def kept(positions: Tensor, mask: Tensor) -> Tensor:
        rounded = seen.apply(positions).round(decimals=_COORDINATE_DIGITS)
        return rounded.masked_fill(~mask[:, _SLOTS, None], torch.nan).float()

    return Backbones(
        "".join(RESTYPES_WITH_X[kind] for kind in comparison.aatype.tolist()),
        kept(predicted, comparison.predicted_mask),
        kept(comparison.true[:, _SLOTS], comparison.true_mask),
        _true_distance(comparison),
        maps,
    )


def on_principal_axes(points: Tensor) -> Rigid:
    """The motion that shows the broad side of a structure; points (P, 3)."""
    if len(points) < 3:
        return Rigid.identity((), points)
    centre = points.mean(0)
    axes = torch.linalg.svd(points - centre, full_matrices=False).Vh
    axes[2] = torch.linalg.cross(axes[0], axes[1])  # no reflection
    return Rigid(axes, -axes @ centre)


def _true_distance(comparison: Comparison) -> Tensor:
    residues = sampled_residues(len(comparison))
    slot = torch.where(comparison.aatype == RESTYPE_INDEX["G"], CA, CB)[residues]
    beta = comparison.true[residues, slot]
    beta = beta.masked_fill(~comparison.true_mask[residues, slot, None], torch.nan)
    return (beta[:, None] - beta[None]).norm(dim=-1)


def shown_chains(
    chains: Sequence[Mapping[str, Any]], kept: Mapping[str, Backbones]
) -> list[dict[str, Any]]:
    """Choose the chains of each split, and write out their structures.

    Returns
    -------
    list of dict
        ``chain_key``, ``split``, ``place`` (best, median or worst), ``sequence``; ``predicted`` and
        ``true``, little-endian float32 of shape (N, 4, 3) in base64, NaN where there is no atom;
        ``maps``: for each of ``distance``, ``true_distance`` and, with the head, ``pae`` and
        ``true_pae`` bytes of shape (M, M) in base64, in eighths of an Å, 255 where not known.
    """
    found = []
    for split in dict.fromkeys(chain["split"] for chain in chains):
        scored = [c for c in chains if c["split"] == split and c["lddt_ca"] is not None]
        scored = [c for c in scored if 2 * c["observed"] >= c["length"]] or scored
        scored.sort(key=lambda chain: -chain["lddt_ca"])
        places = {"best": 0, "median": len(scored) // 2, "worst": len(scored) - 1}
        taken: set[str] = set()
        for place, number in places.items() if scored else ():
            key = scored[number]["chain_key"]
            if key in kept and key not in taken:
                taken.add(key)
                found.append(
                    {"chain_key": key, "split": split, "place": place, **_written(kept[key])}
                )
    return found


def _written(structure: Backbones) -> dict[str, Any]:
    maps = {}
    if structure.maps is not None:
        maps = {"distance": structure.maps.distance, "true_distance": structure.distance}
        if structure.maps.aligned_error is not None:
            residues = structure.maps.residues
            maps["pae"] = structure.maps.aligned_error
            maps["true_pae"] = true_aligned_error(
                structure.predicted[residues], structure.true[residues]
            )
    return {
        "sequence": structure.sequence,
        "predicted": _base64(structure.predicted.numpy().astype("<f4")),
        "true": _base64(structure.true.numpy().astype("<f4")),
        "maps": {name: _base64(_bytes(values)) for name, values in maps.items()},
    }


def _bytes(angstrom: Tensor) -> np.ndarray:
    scaled = (angstrom.double() * MAP_SCALE).round().clamp(0, 254)
    return scaled.nan_to_num(255).numpy().astype(np.uint8)


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")
