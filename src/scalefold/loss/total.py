"""The whole loss: weighted sum of the terms, a sample at a time (Suppl. eq. 7).

Legend: B samples, N residues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from scalefold.chem.residues import CA
from scalefold.config.schema import LossConfig
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.geometry.rigid import Rigid
from scalefold.loss.distogram import distogram_loss
from scalefold.loss.experimentally_resolved import experimentally_resolved_loss
from scalefold.loss.fape import backbone_fape, sidechain_fape
from scalefold.loss.masked_msa import masked_msa_loss
from scalefold.loss.pae import pae_loss
from scalefold.loss.plddt import plddt_loss
from scalefold.loss.renaming import rename_ground_truth
from scalefold.loss.torsion import torsion_loss
from scalefold.loss.violation import violation_loss
from scalefold.model.contract import Outputs

Term = Callable[[Outputs, Features, LossConfig], Tensor]


def _full(value: Tensor) -> Tensor:
    """At least float32: the losses are not computed in half precision."""
    return value if value.dtype == torch.float64 else value.float()


def _full_rigid(frames: Rigid) -> Rigid:
    return Rigid(_full(frames.rotation), _full(frames.translation))


def _in_resolution_range(features: Features, config: LossConfig) -> Tensor:
    """(B,) 1 where the structure is good enough to judge by; NMR and unknown are 0 Å, so 0."""
    resolution = features["resolution"]
    return (resolution >= config.min_resolution_angstrom) & (
        resolution <= config.max_resolution_angstrom
    )


def _fape(outputs: Outputs, features: Features, config: LossConfig) -> Tensor:
    structure = outputs.structure
    backbone = backbone_fape(
        _full_rigid(structure.backbone),
        Rigid.from_4x4(features["backbone_rigid_tensor"]),
        features["backbone_rigid_mask"],
        features["use_clamped_fape"],
    )
    positions, sidechain = _full(structure.positions[-1]), structure.sidechain
    truth = rename_ground_truth(positions, features)
    sidechains = sidechain_fape(
        _full_rigid(Rigid(sidechain.rotation[-1], sidechain.translation[-1])),
        truth.frames,
        features["rigidgroups_gt_exists"],
        positions,
        truth.positions,
        truth.exists,
    )
    share = config.fape_backbone_share
    return share * backbone + (1.0 - share) * sidechains


def _chi(outputs: Outputs, features: Features, config: LossConfig) -> Tensor:
    return torsion_loss(
        _full(outputs.structure.angles),
        _full(outputs.structure.unnormalized_angles),
        features["chi_angles_sin_cos"],
        features["chi_mask"],
        features["rigidgroups_group_is_ambiguous"][..., 4:],
        features["seq_mask"],
    )


def _distogram(outputs: Outputs, features: Features, config: LossConfig) -> Tensor:
    return distogram_loss(
        _full(outputs.distogram_logits), features["pseudo_beta"], features["pseudo_beta_mask"]
    )


def _masked_msa(outputs: Outputs, features: Features, config: LossConfig) -> Tensor:
    return masked_msa_loss(
        _full(outputs.masked_msa_logits), features["true_msa"], features["bert_mask"]
    )


def _plddt(outputs: Outputs, features: Features, config: LossConfig) -> Tensor:
    loss = plddt_loss(
        _full(outputs.plddt_logits),
        _full(outputs.positions[:, :, CA]),
        features["all_atom_positions"][:, :, CA],
        features["all_atom_mask"][:, :, CA],
    )
    return loss * _in_resolution_range(features, config)


def _experimentally_resolved(outputs: Outputs, features: Features, config: LossConfig) -> Tensor:
    loss = experimentally_resolved_loss(
        _full(outputs.experimentally_resolved_logits),
        features["all_atom_mask"],
        features["atom37_atom_exists"],
    )
    return loss * _in_resolution_range(features, config)


def _violation(outputs: Outputs, features: Features, config: LossConfig) -> Tensor:
    return violation_loss(
        _full(outputs.structure.positions[-1]),
        features["atom14_atom_exists"],
        features["residue_index"],
        features["aatype"],
        config.violation_ca_c_n_stddev,
    )


def _pae(outputs: Outputs, features: Features, config: LossConfig) -> Tensor:
    if outputs.pae_logits is None:
        raise InputError(
            f"loss.pae is {config.pae} but the model gives no pae_logits: set model.pae_head to "
            "true, or loss.pae to 0"
        )
    backbone = outputs.structure.backbone
    loss = pae_loss(
        _full(outputs.pae_logits),
        _full_rigid(Rigid(backbone.rotation[-1], backbone.translation[-1])),
        Rigid.from_4x4(features["backbone_rigid_tensor"]),
        features["backbone_rigid_mask"],
    )
    return loss * _in_resolution_range(features, config)


TERMS: Final[dict[str, Term]] = {
    "fape": _fape,
    "chi": _chi,
    "distogram": _distogram,
    "masked_msa": _masked_msa,
    "plddt": _plddt,
    "experimentally_resolved": _experimentally_resolved,
    "violation": _violation,
    "pae": _pae,
}
"""Each term, unweighted, shape (B,); the names are those of the weights in `LossConfig`."""


def total_loss(
    outputs: Outputs, features: Features, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of a batch.

    The weighted sum of a sample's terms times the root of its length after cropping, so that short
    chains count less (Suppl. sec. 1.9); then the mean over the batch. Terms of weight 0 are not
    computed. Nothing waits for the device.

    Parameters
    ----------
    outputs : Outputs
        Of the last recycling pass.
    features : dict
        Of the same pass, see `scalefold.features.contract`.

    Returns
    -------
    loss : Tensor, shape ()
        float64, as the terms' sums are carried in it.
    terms : dict of Tensor, shape (), float64
        Unweighted mean of each computed term over the batch, detached.

    Raises
    ------
    InputError
        If all weights are 0, or the model lacks the head of a term.
    """
    weights = {name: weight for name in TERMS if (weight := getattr(config, name)) > 0}
    if not weights:
        raise InputError(f"loss: the weights of all terms are 0 ({', '.join(TERMS)}): set one")
    with torch.autocast(features["aatype"].device.type, enabled=False):
        terms = {name: TERMS[name](outputs, features, config) for name in weights}
        per_sample = torch.stack([weights[name] * term for name, term in terms.items()]).sum(0)
        num_residues = features["seq_length"].clamp(max=features["aatype"].shape[1])
        loss = (per_sample * num_residues.to(per_sample.dtype).sqrt()).mean()
    return loss, {name: term.detach().mean() for name, term in terms.items()}
