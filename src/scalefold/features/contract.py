"""The feature contract: every tensor that the model and the losses read, by name.

Legend: B samples, N residues (crop), S clustered MSA rows (the template rows of the MSA stack are
added inside the model), E extra MSA rows, T template slots. Masks are float32, 1 = real. All shapes
are fixed by the configuration; short chains and shallow alignments are padded, masks say where.
Positions are in Å.

*Pass* features are redrawn for each recycling pass of a sample; *sample* features are the same in
all passes (one residue crop for all passes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor

Features = dict[str, Tensor]
"""Features of one recycling pass, batched: name -> tensor."""


class FeatureSpec(NamedTuple):
    """One tensor of the contract."""

    dims: tuple[str | int, ...]
    dtype: torch.dtype
    per_pass: bool
    meaning: str

    def shape(self, sizes: Mapping[str, int]) -> list[int]:
        """Shape for these sizes of the named dimensions."""
        return [sizes[dim] if isinstance(dim, str) else dim for dim in self.dims]


_F, _I = torch.float32, torch.int64


def _sample(dims: str, dtype: torch.dtype, meaning: str) -> FeatureSpec:
    return FeatureSpec(_parse(dims), dtype, False, meaning)


def _per_pass(dims: str, dtype: torch.dtype, meaning: str) -> FeatureSpec:
    return FeatureSpec(_parse(dims), dtype, True, meaning)


def _parse(dims: str) -> tuple[str | int, ...]:
    return tuple(int(d) if d.isdigit() else d for d in dims.split())


INPUT_FEATURES: Final[dict[str, FeatureSpec]] = {
    "aatype": _sample("B N", _I, "residue type 0-20; 0 where padded"),
    "residue_index": _sample("B N", _I, "index in the full chain, 0-based"),
    "seq_mask": _sample("B N", _F, "residue is real"),
    "target_feat": _sample("B N 22", _F, "zero (no domain break), one-hot of aatype (21)"),
    "msa_feat": _per_pass(
        "B S N 49",
        _F,
        "one-hot 23, has deletion, deletion value, cluster profile 23, cluster deletion mean",
    ),
    "msa_mask": _per_pass("B S N", _F, "cluster row and residue are real"),
    "extra_msa": _per_pass("B E N", _I, "symbols 0-22 of the extra rows"),
    "extra_has_deletion": _per_pass("B E N", _F, "deletion to the left, clipped to [0, 1]"),
    "extra_deletion_value": _per_pass("B E N", _F, "2/pi atan(deletions / 3)"),
    "extra_msa_mask": _per_pass("B E N", _F, "extra row and residue are real"),
    "template_mask": _sample("B T", _F, "template slot is filled"),
    "template_aatype": _sample("B T N", _I, "residue type 0-20, 21 = gap; 0 where padded"),
    "template_all_atom_positions": _sample("B T N 37 3", _F, "Å"),
    "template_all_atom_mask": _sample("B T N 37", _F, "atom is observed"),
    "template_pseudo_beta": _sample("B T N 3", _F, "C-beta, C-alpha of glycine; Å"),
    "template_pseudo_beta_mask": _sample("B T N", _F, ""),
    "template_torsion_angles_sin_cos": _sample("B T N 7 2", _F, "omega, phi, psi, chi1-4"),
    "template_alt_torsion_angles_sin_cos": _sample("B T N 7 2", _F, "alternative naming"),
    "template_torsion_angles_mask": _sample("B T N 7", _F, ""),
    "atom14_atom_exists": _sample("B N 14", _F, "the residue type has this atom"),
    "atom37_atom_exists": _sample("B N 37", _F, "the residue type has this atom"),
    "residx_atom14_to_atom37": _sample("B N 14", _I, "atom37 slot of each atom14 slot"),
    "residx_atom37_to_atom14": _sample("B N 37", _I, "atom14 slot of each atom37 slot"),
    "dropout_key": _per_pass(
        "B", _I, "counter-based generator key of (run seed, draw or predicted chain, pass)"
    ),
}
"""What the model reads."""

TARGET_FEATURES: Final[dict[str, FeatureSpec]] = {
    "true_msa": _per_pass("B S N", _I, "symbols of the cluster rows before masking"),
    "bert_mask": _per_pass("B S N", _F, "position was chosen for masking"),
    "all_atom_positions": _sample("B N 37 3", _F, "Å"),
    "all_atom_mask": _sample("B N 37", _F, "atom is observed"),
    "atom14_gt_positions": _sample("B N 14 3", _F, "Å"),
    "atom14_gt_exists": _sample("B N 14", _F, "atom is observed"),
    "atom14_alt_gt_positions": _sample("B N 14 3", _F, "Å, alternative naming"),
    "atom14_alt_gt_exists": _sample("B N 14", _F, "observed, alternative naming"),
    "atom14_atom_is_ambiguous": _sample("B N 14", _F, "name is ambiguous (Suppl. Table 3)"),
    "rigidgroups_gt_frames": _sample("B N 8 4 4", _F, "true frames of the rigid groups"),
    "rigidgroups_gt_exists": _sample("B N 8", _F, "all three defining atoms are observed"),
    "rigidgroups_group_exists": _sample("B N 8", _F, "the residue type has this group"),
    "rigidgroups_group_is_ambiguous": _sample("B N 8", _F, "naming is ambiguous"),
    "rigidgroups_alt_gt_frames": _sample("B N 8 4 4", _F, "frames under alternative naming"),
    "backbone_rigid_tensor": _sample("B N 4 4", _F, "true backbone frame"),
    "backbone_rigid_mask": _sample("B N", _F, "N, CA, C are observed"),
    "pseudo_beta": _sample("B N 3", _F, "C-beta, C-alpha of glycine; Å"),
    "pseudo_beta_mask": _sample("B N", _F, ""),
    "chi_angles_sin_cos": _sample("B N 4 2", _F, "true chi1-4"),
    "chi_mask": _sample("B N 4", _F, "chi angle is defined and observed"),
    "resolution": _sample("B", _F, "Å; 0 where unknown"),
    "seq_length": _sample("B", _I, "length of the full chain before cropping"),
    "use_clamped_fape": _sample("B", _F, "1: clamp the backbone FAPE of this sample at 10 Å"),
}
"""What the losses read besides the model's outputs."""

ALL_FEATURES: Final = {**INPUT_FEATURES, **TARGET_FEATURES}
