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
    """Cumulative probabilities of a masked position's new symbol, but for "the same symbol".

    A new symbol is a uniform amino acid, one of the column's profile, the same as before, or else
    the MASK. What all rows have in common is summed here, once, so that every device compares
    draws with the same numbers.

    Parameters
    ----------
    profile : ndarray, shape (N, 22)
        Of the full alignment, gaps included.
    config : MaskedMsaConfig

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
    config : MaskedMsaConfig

    Returns
    -------
    masked : Tensor, shape (S, N), uint8
        0-22.
    chosen : Tensor, shape (S, N), bool
        Positions chosen for masking, also where the symbol happens to stay the same.
    """
    chosen = mask_position < config.replace_fraction
    # The drawn symbol is the number of symbols whose cumulative probability is not above the draw;
    # from the old symbol on, that probability has the one of "the same" in it. Of 22 bounds, so
    # that rounding of the sum cannot lead past the MASK; a class of probability 0 is never drawn.
    draw = mask_symbol[..., None]
    below = (draw >= bounds).sum(-1).minimum(symbols)
    above = (draw >= bounds + config.same).sum(-1) - symbols
    drawn = (below + above.clamp(min=0)).to(symbols.dtype)
    return torch.where(chosen, drawn, symbols), chosen
