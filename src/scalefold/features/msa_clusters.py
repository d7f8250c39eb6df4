"""Clusters of an alignment's rows around sampled centres (Suppl. sec. 1.2.7).

Each row that is not a centre belongs to the centre that it agrees with at most positions. Agreement
is counted over the *full* length and on the *masked* centres. Gaps and masks do not count. Ties go
to the first centre.

Legend: R rows, P passes, S centres, N residues, W residues of a window.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.chem.residues import GAP, MASK

NUM_SYMBOLS = MASK + 1

_ONE_HOT_BYTES = {"cpu": 32 * 2**20, "cuda": 256 * 2**20}
"""Memory of one block of one-hot rows: a CPU's cache, or enough for few launches on a GPU."""


def nearest_centres(rows: Tensor, centres: Tensor) -> Tensor:
    """Find the centre that each row agrees with most, in each pass.

    Parameters
    ----------
    rows : Tensor, shape (R, N), uint8
        All rows of the alignment; their one-hot encoding is shared by all passes.
    centres : Tensor, shape (P, S, N), uint8
        Masked centres of each pass.

    Returns
    -------
    Tensor, shape (P, R), int64
    """
    num_passes, num_centres, num_res = centres.shape
    # Gaps do not count. They make the width a multiple of 8, as CUDA's integer GEMM needs.
    filling = (0, -num_res % 8)
    rows = functional.pad(rows, filling, value=GAP)
    encoded_centres = _one_hot(functional.pad(centres.flatten(0, 1), filling, value=GAP))
    block = max(1, _ONE_HOT_BYTES[rows.device.type] // (rows.shape[1] * GAP))
    nearest = []
    for start in range(0, len(rows), block):
        agreement = _count_common(_one_hot(rows[start : start + block]), encoded_centres)
        # torch.argmax returns the first of equal maxima
        nearest.append(agreement.view(-1, num_passes, num_centres).argmax(-1))
    return torch.cat(nearest).T


def symbol_counts(symbols: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Count symbols by column over groups of rows.

    Parameters
    ----------
    symbols : Tensor, shape (K, W), integer
        0-22.
    group : Tensor, shape (K,), int64

    Returns
    -------
    Tensor, shape (num_groups, W, 23), int64
        Exact.
    """
    width = symbols.shape[1]
    column = torch.arange(width, device=symbols.device)
    slot = (group[:, None] * width + column) * NUM_SYMBOLS + symbols
    return count_each(slot.flatten(), num_groups * width * NUM_SYMBOLS).view(
        num_groups, width, NUM_SYMBOLS
    )


def count_each(values: Tensor, num_values: int) -> Tensor:
    """How often each of 0 to ``num_values - 1`` occurs: (K,) int64 -> (num_values,) int64.

    `torch.bincount` would make a GPU's host wait for the largest value.
    """
    counts = values.new_zeros(num_values)
    return counts.scatter_add_(0, values, counts.new_ones(1).expand(len(values)))


def summarize_clusters(
    masked_centres: Tensor,
    centre_deletions: Tensor,
    member_counts: Tensor,
    member_deletions: Tensor,
    num_members: Tensor,
) -> tuple[Tensor, Tensor]:
    """Profile and mean deletion count of each cluster, its centre included.

    Parameters
    ----------
    masked_centres : Tensor, shape (S, W), integer
    centre_deletions : Tensor, shape (S, W), float32
    member_counts : Tensor, shape (S, W, 23), int64
        Symbols of the other members.
    member_deletions : Tensor, shape (S, W), int64
        Deletions of the other members, summed.
    num_members : Tensor, shape (S,), int64
        Without the centre.

    Returns
    -------
    profile : Tensor, shape (S, W, 23), float32
    deletion_mean : Tensor, shape (S, W), float32
    """
    size = (1e-6 + 1.0) + num_members.float()
    counts = member_counts.float()
    counts.scatter_add_(-1, masked_centres.long()[..., None], torch.ones_like(counts[..., :1]))
    profile = counts / size[:, None, None]
    return profile, (member_deletions.float() + centre_deletions) / size[:, None]


def _one_hot(rows: Tensor) -> Tensor:
    """Encode the symbols that count, 0-20: (K, N) uint8 -> (K, 21 N) int8, symbol-major."""
    symbol = torch.arange(GAP, dtype=rows.dtype, device=rows.device)
    return (rows[:, None, :] == symbol[:, None]).view(torch.int8).flatten(1)


def _count_common(first: Tensor, second: Tensor) -> Tensor:
    """Exact dot products of 0/1 vectors: (K, C) int8, (M, C) int8 -> (K, M).

    This is an integer GEMM if there is one, else float32 (exact below 2^24). Half precision would
    round counts above 256.
    """
    if first.is_cuda or torch.backends.mkldnn.is_available():
        # torch has no public GEMM of 8-bit integers with 32-bit sums. CUDA needs more than 16 rows
        # in the first matrix, and a multiple of 8 in the second.
        num_first, num_second = len(first), len(second)
        first = functional.pad(first, (0, 0, 0, max(17 - num_first, 0)))
        second = functional.pad(second, (0, 0, 0, -num_second % 8))
        return torch._int_mm(first, second.T)[:num_first, :num_second]
    return first.float() @ second.float().T
