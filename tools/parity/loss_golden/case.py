"""Inputs of all loss terms: two samples of 12 rows.

Truth: two stretches of 5PTI (in demo/mirror), with unobserved atoms, an unknown residue, a jump of
the residue index and three padded rows. Prediction: the truth with noise, so that some errors are
clamped, some not, and some bonds, angles and atoms are in violation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scalefold.chem.residues import UNKNOWN
from scalefold.features.atoms import atom_layout
from scalefold.features.targets import structure_targets
from scalefold.geometry.rigid import quaternion_to_rotation
from scalefold.raw.mmcif import read_entry

NUM_RES, NUM_LAYERS, NUM_ROWS = 12, 2, 3
Arrays = dict[str, NDArray[Any]]


def _truth(chain: Any, start: int, stop: int, rng: np.random.Generator) -> Arrays:
    """Targets of one stretch of the chain, padded to NUM_RES rows."""
    aatype = torch.from_numpy(chain.aatype[start:stop]).long()
    positions = torch.from_numpy(chain.positions[start:stop])
    mask = torch.from_numpy(chain.atom_mask[start:stop]).float()
    if stop - start < NUM_RES:  # the second sample: an unknown residue
        aatype[2] = UNKNOWN
        mask[2, 5:] = 0.0
    lost = torch.from_numpy(rng.random(mask.shape) < 0.06)
    lost[:2] = False
    mask = mask.masked_fill(lost, 0.0)
    positions = positions * mask[..., None]
    residue_index = torch.arange(start, stop)
    residue_index[6:] += 4
    features = {
        "aatype": aatype,
        "residue_index": residue_index,
        "seq_mask": torch.ones(stop - start),
        **atom_layout(aatype),
        **structure_targets(aatype, positions, mask),
    }
    padded = {}
    for name, value in features.items():
        array = value.numpy()
        array = array.astype(np.float64) if array.dtype.kind == "f" else array
        width = [(0, NUM_RES - len(array))] + [(0, 0)] * (array.ndim - 1)
        padded[name] = np.pad(array, width)
    return padded


def _turned(frames: NDArray[Any], rng: np.random.Generator, angle: float) -> NDArray[Any]:
    """Rotations of 4x4 frames times small random ones; unit quaternions in float64."""
    shape = frames.shape[:-2]
    quaternion = np.concatenate(
        [np.ones((*shape, 1)), angle * rng.standard_normal((*shape, 3))], axis=-1
    )
    quaternion /= np.linalg.norm(quaternion, axis=-1, keepdims=True)
    turn = quaternion_to_rotation(torch.from_numpy(quaternion)).numpy()
    return frames[..., :3, :3] @ turn


def make_inputs() -> Arrays:
    """All features and predictions, B first (layers before it), floats in float64."""
    rng = np.random.default_rng(20210715)
    demo = Path(__file__).parents[3] / "demo/mirror/wwpdb"
    chain = read_entry(next(demo.rglob("5pti.cif.gz"))).chains[0]
    samples = [_truth(chain, 0, 12, rng), _truth(chain, 43, 52, rng)]
    inputs = {name: np.stack([s[name] for s in samples]) for name in samples[0]}
    # AlphaFold2 takes angles: float32 roundings of (sin, cos) must be of unit length in float64 too
    sin_cos = inputs["chi_angles_sin_cos"]
    angle = np.arctan2(sin_cos[..., 0], sin_cos[..., 1])
    inputs["chi_angles_sin_cos"] = np.stack([np.sin(angle), np.cos(angle)], -1)
    inputs["use_clamped_fape"] = np.array([1.0, 0.25])
    inputs["true_msa"] = rng.integers(0, 22, (2, NUM_ROWS, NUM_RES))
    inputs["bert_mask"] = (rng.random((2, NUM_ROWS, NUM_RES)) < 0.3).astype(np.float64)

    def noise(*shape: int) -> NDArray[Any]:
        return rng.standard_normal(shape)

    layers = (NUM_LAYERS, 2, NUM_RES)
    truth = np.broadcast_to(inputs["rigidgroups_gt_frames"], (*layers, 8, 4, 4))
    far = 1.0 + 12.0 * (rng.random((*layers, 1)) < 0.3)
    inputs["backbone.rotation"] = _turned(truth[..., 0, :, :], rng, 0.3)
    inputs["backbone.translation"] = truth[..., 0, :3, 3] + far * noise(*layers, 3)
    inputs["sidechain.rotation"] = _turned(truth, rng, 0.3)
    inputs["sidechain.translation"] = truth[..., :3, 3] + far[..., None] * noise(*layers, 8, 3)
    exists = inputs["atom14_atom_exists"][..., None]
    last = inputs["atom14_gt_positions"] + 0.35 * noise(2, NUM_RES, 14, 3)
    # half of the ambiguous groups are predicted the other way round
    alternative = inputs["atom14_alt_gt_positions"] + 0.35 * noise(2, NUM_RES, 14, 3)
    odd = (np.arange(NUM_RES) % 2 == 1)[None, :, None, None]
    # unobserved atoms: near C-alpha
    seen = inputs["atom14_gt_exists"][..., None] * inputs["atom14_alt_gt_exists"][..., None]
    near = inputs["atom14_gt_positions"][:, :, 1:2] + 2.0 * noise(2, NUM_RES, 14, 3)
    last = exists * np.where(seen > 0, np.where(odd, alternative, last), near)
    inputs["positions"] = np.stack([exists * noise(2, NUM_RES, 14, 3), last])
    raw = noise(*layers, 7, 2)
    inputs["unnormalized_angles"] = raw
    inputs["angles"] = raw / np.linalg.norm(raw, axis=-1, keepdims=True)
    predicted_ca = inputs["all_atom_positions"][:, :, 1] + 0.8 * noise(2, NUM_RES, 3)
    inputs["predicted_ca"] = predicted_ca
    for name, shape in {
        "distogram_logits": (2, NUM_RES, NUM_RES, 64),
        "masked_msa_logits": (2, NUM_ROWS, NUM_RES, 23),
        "plddt_logits": (2, NUM_RES, 50),
        "experimentally_resolved_logits": (2, NUM_RES, 37),
        "pae_logits": (2, NUM_RES, NUM_RES, 64),
    }.items():
        # few bits, stored small, exact in any type
        inputs[name] = (np.round(16 * noise(*shape)) / 16).astype(np.float16)
    return inputs
