"""Symmetric side chains: which of two equivalent namings the true structure is given.

Turning the end of Asp, Glu, Phe or Tyr by 180 degrees gives the same molecule with two atom names
exchanged (Jumper et al. 2021, Suppl. sec. 1.8.5, Table 3). Policy: for each such residue the naming
of the true structure is taken that the prediction agrees with better, and the naming as deposited
on a tie. Agreement is the lDDT of the residue's ambiguous atoms against all atoms with unambiguous
names, so that one residue's choice does not depend on another's. Leu and Val are not exchanged:
their names are fixed by chirality; nor is Arg, whose NH1 and NH2 are told apart when structures are
read.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from scalefold.chem.residues import ATOM14_IS_AMBIGUOUS, ATOM14_SWAP, ATOM14_TO_ATOM37
from scalefold.evaluate.metrics.comparison import Comparison
from scalefold.evaluate.metrics.lddt import pair_sums


def _atom37_swap() -> Tensor:
    swap = torch.arange(37).repeat(21, 1)
    for restype, slot in zip(*ATOM14_IS_AMBIGUOUS.nonzero()):
        other = ATOM14_SWAP[restype, slot]
        swap[restype, ATOM14_TO_ATOM37[restype, slot]] = int(ATOM14_TO_ATOM37[restype, other])
    return swap


_ATOM37_SWAP = _atom37_swap()  # [21, 37] slot that holds the atom under the alternative naming


def with_best_naming(comparison: Comparison) -> Comparison:
    """The same comparison, with symmetric side chains of the true structure named for the best.

    Returns
    -------
    Comparison
        Only ``true`` and ``true_mask`` of ambiguous atoms may differ.
    """
    swap = _ATOM37_SWAP[comparison.aatype]
    ambiguous = swap != torch.arange(37)
    alternative = dataclasses.replace(
        comparison,
        true=comparison.true.gather(1, swap[..., None].expand(-1, -1, 3)),
        true_mask=comparison.true_mask.gather(1, swap),
    )
    # Sums, not means: where only one of two symmetric atoms was observed, a mean would prefer the
    # naming with fewer pairs.
    agreement, _ = pair_sums(comparison, atoms=ambiguous, partners=~ambiguous)
    alternative_agreement, _ = pair_sums(alternative, atoms=ambiguous, partners=~ambiguous)
    better = alternative_agreement > agreement
    return dataclasses.replace(
        comparison,
        true=torch.where(better[:, None, None], alternative.true, comparison.true),
        true_mask=torch.where(better[:, None], alternative.true_mask, comparison.true_mask),
    )
