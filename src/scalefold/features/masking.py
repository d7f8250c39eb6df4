"""BERT masking of the cluster centres (Suppl. sec. 1.2.7)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.chem.residues import MASK, NUM_RESTYPES
from scalefold.config.schema import MaskedMsaConfig

NUM_SYMBOLS = MASK + 1


def replacement_probabilities(symbols: Tensor, profile: Tensor, config: MaskedMsaConfig) -> Tensor:
    """Distribution that a masked position's new symbol is drawn from.

    Parameters
    ----------
    symbols : Tensor, shape (S, N), integer
        0-21, before masking.
    profile : Tensor, shape (N, 22)
        Of the full alignment, gaps included.
    config : MaskedMsaConfig

    Returns
    -------
    Tensor, shape (S, N, 23), float32
        A uniform amino acid, one of the column's profile, the same symbol, or else the MASK.
    """
    uniform = profile.new_zeros(22)
    uniform[:NUM_RESTYPES] = 1.0 / NUM_RESTYPES
    same = functional.one_hot(symbols.long(), 22).to(profile.dtype)
    known = config.uniform * uniform + config.profile * profile + config.same * same
    rest = 1.0 - config.uniform - config.profile - config.same
    return functional.pad(known, (0, 1), value=rest)


def mask_msa(
    symbols: Tensor,
    profile: Tensor,
    mask_position: Tensor,
    mask_symbol: Tensor,
    config: MaskedMsaConfig,
) -> tuple[Tensor, Tensor]:
    """Replace a random part of the symbols.

    Parameters
    ----------
    symbols : Tensor, shape (S, N), uint8
    profile : Tensor, shape (N, 22), float32
    mask_position, mask_symbol : Tensor, shape (S, N), float32
        Uniform in [0, 1).
    config : MaskedMsaConfig

    Returns
    -------
    masked : Tensor, shape (S, N), uint8
        0-22.
    chosen : Tensor, shape (S, N), bool
        Positions chosen for masking, also where the symbol happens to stay the same.
    """
    chosen = mask_position < config.replace_fraction
    row, column = chosen.nonzero(as_tuple=True)
    cumulative = _cumulative(symbols[row, column], profile[column], config)
    # A class of probability 0 has an empty interval and is never drawn. The last bound is left
    # open, so that rounding of the sum cannot lead past the MASK.
    drawn = (mask_symbol[row, column, None] >= cumulative[:, :-1]).sum(-1)
    masked = symbols.clone()
    masked[row, column] = drawn.to(symbols.dtype)
    return masked, chosen


def _cumulative(symbols: Tensor, profile: Tensor, config: MaskedMsaConfig) -> Tensor:
    """Cumulative probabilities of single positions: (M,), (M, 22) -> (M, 23)."""
    return torch.cumsum(replacement_probabilities(symbols, profile, config), -1)
