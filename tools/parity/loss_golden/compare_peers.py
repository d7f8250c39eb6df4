"""Compare all loss terms and gradients with OpenFold's or MLPerf HPC's, float64, same inputs.

Not a test: a check for development, run with a checkout of aqlaboratory/openfold or of MLPerf HPC's
OpenFold (see ``peer_code.py``)::

    python -m tools.parity.loss_golden.compare_peers {openfold,mlperf} <folder that holds openfold/>

Known differences of both from AlphaFold2, levelled here (scalefold follows AlphaFold2):

- the mean of the FAPE is divided by (eps + frames)(eps + points), not by eps + frames x points;
- the mean of the torsion loss has eps 1e-4, not 1e-10;
- the CA-C-N angle's tolerance is that of the C-N bond, 12 x 0.014, not the angle's, 12 x 0.0311;
- rigid transforms are cast to float32;
- OpenFold averages over the batch, and sums where AlphaFold2 has one sample (clashes, pi-periodic
  chi): it gets one sample at a time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.parity.test_whole_golden import OPENFOLD_CA_C_N_STDDEV
from tools.parity.peer_code import EPS, PeerCode
from torch import Tensor

from scalefold.geometry.rigid import Rigid
from scalefold.loss.distogram import distogram_loss
from scalefold.loss.experimentally_resolved import experimentally_resolved_loss
from scalefold.loss.fape import backbone_fape, sidechain_fape
from scalefold.loss.lddt import lddt_per_residue
from scalefold.loss.masked_msa import masked_msa_loss
from scalefold.loss.pae import pae_loss
from scalefold.loss.plddt import plddt_loss
from scalefold.loss.renaming import rename_ground_truth
from scalefold.loss.torsion import torsion_loss
from scalefold.loss.violation import violation_loss

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
LAYERED = {"backbone", "sidechain", "positions", "angles", "unnormalized_angles"}
GOOD_RESOLUTION = torch.tensor([1.5], dtype=torch.float64)


CODE = PeerCode(KIND, FOLDER)
LOSS = CODE.loss


def peer_rigid(rotation: Tensor, translation: Tensor) -> Any:
    rotations = CODE.rigid.Rotation(rot_mats=rotation, quats=None)
    return CODE.rigid.Rigid(rotations, translation)


def peer_fape(
    frames: tuple[Tensor, Tensor],
    true: tuple[Tensor, Tensor],
    frame_mask: Tensor,
    points: Tensor,
    true_points: Tensor,
    point_mask: Tensor,
    clamp: float | None,
) -> Tensor:
    value: Tensor = LOSS.compute_fape(
        peer_rigid(*frames),
        peer_rigid(*true),
        frame_mask,
        points,
        true_points,
        point_mask,
        length_scale=10.0,
        l1_clamp_distance=clamp,
        eps=EPS["fape"],
    )
    return value


def compare(name: str, ours: Any, peers: Any, arguments: dict[str, Tensor]) -> float:
    results = []
    for function in (ours, peers):
        leaves = {key: value.clone().requires_grad_() for key, value in arguments.items()}
        value = function(**leaves).sum()
        results.append([value, *torch.autograd.grad(value, list(leaves.values()))])
    worst = 0.0
    for label, a, b in zip(["value", *arguments], *results, strict=True):
        scale = b.abs().max().item()
        error = (a - b).abs().max().item() / scale
        worst = max(worst, error)
        print(f"{name:28s} {label:20s} {error:.1e} of {scale:.3g}")
    return worst


def one_sample(stored: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """Keep B = 1."""
    return {
        name: value[:, number : number + 1]
        if name.partition(".")[0] in LAYERED
        else value[number : number + 1]
        for name, value in stored.items()
    }


def compare_structure(x: dict[str, Tensor]) -> float:
    true = Rigid.from_4x4(x["backbone_rigid_tensor"])
    mask = x["backbone_rigid_mask"]
    errors = []
    for clamp in (10.0, None):
        use = torch.tensor([float(clamp is not None)], dtype=torch.float64)
        errors.append(
            compare(
                f"backbone_fape clamp {clamp}",
                lambda rotation, translation, use=use: backbone_fape(
                    Rigid(rotation, translation), true, mask, use
                ),
                lambda rotation, translation, clamp=clamp: peer_fape(
                    (rotation, translation), true, mask, translation, true.translation, mask, clamp
                ).mean(0),
                {key: x[f"backbone.{key}"] for key in ("rotation", "translation")},
            )
        )

    final = x["positions"][-1]
    truth = rename_ground_truth(final, x)
    renamed = LOSS.compute_renamed_ground_truth(x, final)
    assert torch.equal(truth.is_swapped.double(), renamed["alt_naming_is_better"])
    assert torch.equal(truth.positions, renamed["renamed_atom14_gt_positions"])
    assert torch.equal(truth.exists, renamed["renamed_atom14_gt_exists"])
    frame_mask = x["rigidgroups_gt_exists"]
    errors.append(
        compare(
            "sidechain_fape",
            lambda rotation, translation, positions: sidechain_fape(
                Rigid(rotation, translation),
                truth.frames,
                frame_mask,
                positions,
                truth.positions,
                truth.exists,
            ),
            lambda rotation, translation, positions: peer_fape(
                (rotation.flatten(1, 2), translation.flatten(1, 2)),
                (truth.frames.rotation.flatten(1, 2), truth.frames.translation.flatten(1, 2)),
                frame_mask.flatten(1),
                positions.flatten(1, 2),
                truth.positions.flatten(1, 2),
                truth.exists.flatten(1),
                10.0,
            ),
            {
                "rotation": x["sidechain.rotation"][-1],
                "translation": x["sidechain.translation"][-1],
                "positions": final,
            },
        )
    )

    def peer_chi(angles: Tensor, unnormalized_angles: Tensor) -> Tensor:
        names = ("aatype", "seq_mask", "chi_mask", "chi_angles_sin_cos")
        given = {name: x[name] for name in names}
        if KIND == "openfold":
            given = {name: value[0] for name, value in given.items()}
            angles, unnormalized_angles = angles[:, 0], unnormalized_angles[:, 0]
        else:  # batch, layer
            angles, unnormalized_angles = (a.transpose(0, 1) for a in (angles, unnormalized_angles))
        return LOSS.supervised_chi_loss(
            angles,
            unnormalized_angles,
            chi_weight=0.5,
            angle_norm_weight=0.01,
            eps=EPS["chi"],
            **given,
        )

    errors.append(
        compare(
            "chi",
            lambda angles, unnormalized_angles: torsion_loss(
                angles,
                unnormalized_angles,
                x["chi_angles_sin_cos"],
                x["chi_mask"],
                x["rigidgroups_group_is_ambiguous"][..., 4:],
                x["seq_mask"],
            ),
            peer_chi,
            {key: x[key] for key in ("angles", "unnormalized_angles")},
        )
    )

    def peer_violation(positions: Tensor) -> Tensor:
        found = LOSS.find_structural_violations(
            x, positions, violation_tolerance_factor=12.0, clash_overlap_tolerance=1.5
        )
        return LOSS.violation_loss(found, x["atom14_atom_exists"], eps=EPS["violation"])

    errors.append(
        compare(
            "violation",
            lambda positions: violation_loss(
                positions,
                x["atom14_atom_exists"],
                x["residue_index"],
                x["aatype"],
                OPENFOLD_CA_C_N_STDDEV,
            ),
            peer_violation,
            {"positions": final},
        )
    )
    return max(errors)


def compare_heads(x: dict[str, Tensor]) -> float:
    true_ca, ca_mask = x["all_atom_positions"][:, :, 1], x["all_atom_mask"][:, :, 1]
    atoms = torch.zeros_like(x["all_atom_positions"])
    atoms[:, :, 1] = x["predicted_ca"]
    ours_lddt = lddt_per_residue(x["predicted_ca"], true_ca, ca_mask)
    torch.testing.assert_close(
        ours_lddt,
        LOSS.lddt_ca(atoms, x["all_atom_positions"], x["all_atom_mask"]),
        rtol=0,
        atol=1e-12,
    )
    rotation, translation = x["backbone.rotation"][-1], x["backbone.translation"][-1]
    frames, mask = Rigid(rotation, translation), x["backbone_rigid_mask"]
    true = Rigid.from_4x4(x["backbone_rigid_tensor"])
    quaternions = peer_rigid(rotation, translation).to_tensor_7()
    bins = {"num_classes": 23} if KIND == "openfold" else {}
    limits = {"min_resolution": 0.1, "max_resolution": 3.0, "resolution": GOOD_RESOLUTION}
    pairs: dict[str, tuple[Any, Any]] = {
        "distogram": (
            lambda logits: distogram_loss(logits, x["pseudo_beta"], x["pseudo_beta_mask"]),
            lambda logits: LOSS.distogram_loss(
                logits, x["pseudo_beta"], x["pseudo_beta_mask"], eps=EPS["distogram"]
            ),
        ),
        "masked_msa": (
            lambda logits: masked_msa_loss(logits, x["true_msa"], x["bert_mask"]),
            lambda logits: LOSS.masked_msa_loss(
                logits,
                x["true_msa"],
                x["bert_mask"],
                eps=EPS["masked_msa"],
                **bins,
            ),
        ),
        "experimentally_resolved": (
            lambda logits: experimentally_resolved_loss(
                logits, x["all_atom_mask"], x["atom37_atom_exists"]
            ),
            lambda logits: LOSS.experimentally_resolved_loss(
                logits,
                x["atom37_atom_exists"],
                x["all_atom_mask"],
                eps=EPS["experimentally_resolved"],
                **limits,
            ),
        ),
        "plddt": (
            lambda logits: plddt_loss(logits, x["predicted_ca"], true_ca, ca_mask),
            lambda logits: LOSS.lddt_loss(
                logits,
                atoms,
                x["all_atom_positions"],
                x["all_atom_mask"],
                eps=EPS["plddt"],
                **limits,
            ),
        ),
        "pae": (
            lambda logits: pae_loss(logits, frames, true, mask),
            lambda logits: LOSS.tm_loss(
                logits, quaternions, x["backbone_rigid_tensor"], mask, eps=EPS["pae"], **limits
            ),
        ),
    }
    return max(
        compare(name, *functions, {"logits": x[f"{name}_logits"]})
        for name, functions in pairs.items()
    )


def main() -> None:
    with np.load(Path("tests/parity/loss_golden/alphafold2.npz")) as stored:
        inputs = {
            key.removeprefix("input/"): torch.from_numpy(stored[key])
            for key in stored.files
            if key.startswith("input/")
        }
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    samples = [one_sample(inputs, number) for number in range(2)]
    with CODE.prepared(torch.float64, levelled=True):
        worst = max(max(compare_structure(x), compare_heads(x)) for x in samples)
    print(f"worst relative difference from {KIND}: {worst:.1e}")
    if worst > 1e-9:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
