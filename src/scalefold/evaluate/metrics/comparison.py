"""The pair of structures that every metric takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scalefold.errors import InputError


@dataclass(frozen=True, eq=False)
class Comparison:
    """A predicted and a true structure of one chain, residue by residue, in the atom37 layout.

    Coordinates become float64 on the CPU and masks boolean; where a mask is false the coordinates
    are not looked at and are set to zero.

    Parameters
    ----------
    predicted, true : Tensor, shape (N, 37, 3)
        Å.
    predicted_mask : Tensor, shape (N, 37)
        The prediction has this atom. Atoms that are true but not predicted (those of residues of
        unknown type) count as wrong in every metric but the RMSD.
    true_mask : Tensor, shape (N, 37)
        The atom was observed. Unobserved atoms do not count in any metric.
    aatype : Tensor, shape (N,)
        Residue types 0-20.

    Raises
    ------
    InputError
        If shapes do not agree, or a coordinate that a mask calls real is not finite.
    """

    predicted: Tensor
    predicted_mask: Tensor
    true: Tensor
    true_mask: Tensor
    aatype: Tensor

    def __post_init__(self) -> None:
        num_res = len(self.aatype)
        expected = {
            "predicted": (num_res, 37, 3),
            "predicted_mask": (num_res, 37),
            "true": (num_res, 37, 3),
            "true_mask": (num_res, 37),
            "aatype": (num_res,),
        }
        for name, shape in expected.items():
            found = tuple(getattr(self, name).shape)
            if found != shape:
                raise InputError(
                    f"comparison of structures: {name} is {found}, must be {shape} for "
                    f"{num_res} residues in the atom37 layout"
                )
        object.__setattr__(self, "aatype", self.aatype.detach().cpu().long())
        for name in ("predicted", "true"):
            mask = getattr(self, f"{name}_mask").detach().cpu() > 0
            points = getattr(self, name).detach().cpu().double().masked_fill(~mask[..., None], 0.0)
            if not torch.isfinite(points).all():
                residue = int((~torch.isfinite(points)).flatten(1).any(1).nonzero()[0])
                raise InputError(
                    f"comparison of structures: {name} coordinates are not finite, first at "
                    f"residue {residue} (0-based) of {num_res}"
                )
            object.__setattr__(self, name, points)
            object.__setattr__(self, f"{name}_mask", mask)

    def __len__(self) -> int:
        """Return the number of residues, observed or not."""
        return len(self.aatype)
