"""BERT masking of the cluster centres (Suppl. sec. 1.2.7)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalefold.chem.residues import GAP, NUM_RESTYPES
from scalefold.config.schema import MaskedMsaConfig

_NUM_KNOWN = GAP + 1
"""Symbols that may replace a masked one, besides the MASK."""


def replacement_bounds(
    profile: NDArray[np.float32], config: MaskedMsaConfig
) -> NDArray[np.float32]:
    """Cumulative probabilities of a masked position's new symbol, without "the same symbol".

    A new symbol is a uniform amino acid, one of the column's profile, the same as before, or else
    the MASK. The part that all rows share is summed here, once, so that every device compares
    random numbers with the same bounds.

    Parameters
    ----------
    profile : ndarray, shape (N, 22)
        Of the full alignment, gaps included.

    Returns
    -------
    ndarray, shape (N, 22), float32
        Probability that the new symbol is drawn uniformly or from the profile, and is at most this
        one.
    """
    uniform = np.zeros(_NUM_KNOWN)
    uniform[:NUM_RESTYPES] = 1.0 / NUM_RESTYPES
    return np.cumsum(config.uniform * uniform + config.profile * profile, -1).astype(np.float32)


def mask_msa(
    symbols: Tensor,
    bounds: Tensor,
    mask_position: Tensor,
    mask_symbol: Tensor,
    config: MaskedMsaConfig,
) -> tuple[Tensor, Tensor]:
    """Replace a random part of the symbols.

    Parameters
    ----------
    symbols : Tensor, shape (S, N), uint8
        0-21.
    bounds : Tensor, shape (N, 22), float32
        Of `replacement_bounds`.
    mask_position, mask_symbol : Tensor, shape (S, N), float32
        Uniform in [0, 1).

    Returns
    -------
    masked : Tensor, shape (S, N), uint8
        0-22.
    chosen : Tensor, shape (S, N), bool
        Positions chosen for masking, also if the symbol stays the same.
    """
    chosen = mask_position < config.replace_fraction
    # The new symbol is the number of bounds that are not above the random number. From the old
    # symbol on, the bounds include the probability of "the same". There are 22 bounds, so rounding
    # of the sum cannot lead past the MASK. A symbol of probability 0 never comes.
    draw = mask_symbol[..., None]
    below = (draw >= bounds).sum(-1).minimum(symbols)
    above = (draw >= bounds + config.same).sum(-1) - symbols
    drawn = (below + above.clamp(min=0)).to(symbols.dtype)
    return torch.where(chosen, drawn, symbols), chosen
