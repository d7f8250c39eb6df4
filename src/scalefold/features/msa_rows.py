"""Which rows of an alignment are used: block deletion, cluster centres, extra rows.

Suppl. Alg. 1 and sec. 1.2.6, 1.2.7. Row 0, the query, is always the first cluster centre.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalefold.features.draws import MsaDraws


class RowChoice(NamedTuple):
    """Rows of one pass.

    Attributes
    ----------
    centres : ndarray, shape (min(max_clusters, kept rows),), int64
        Cluster centres, the query first.
    others : ndarray, int64
        All other rows that block deletion left, in random order: they are clustered, and the first
        of them are the extra rows.
    """

    centres: NDArray[np.int64]
    others: NDArray[np.int64]


def kept_rows(num_rows: int, starts: NDArray[np.int64], fraction: float) -> NDArray[np.bool_]:
    """Delete contiguous blocks of rows (Suppl. Alg. 1).

    Neighbouring rows are similar sequences of one search, so blocks remove whole subfamilies.

    Parameters
    ----------
    num_rows : int
    starts : ndarray of int64, each 1 to num_rows - 1
        First row of each block.
    fraction : float
        Size of a block, as a fraction of the rows, rounded down.

    Returns
    -------
    ndarray, shape (num_rows,), bool
        False where deleted; always true for the query.
    """
    # float32, as in the references: 90 * 0.7 must be 63, not 62.99
    size = int(np.float32(num_rows) * np.float32(fraction))
    kept = np.ones(num_rows, np.bool_)
    for start in starts:
        kept[start : start + size] = False
    return kept


def choose_rows(
    num_rows: int,
    draws: MsaDraws,
    max_clusters: int,
    block_fraction: float,
    max_rows: int | None = None,
) -> RowChoice:
    """Choose cluster centres at random; all other rows remain to be clustered.

    Parameters
    ----------
    num_rows : int
    draws : MsaDraws
    max_clusters : int
    block_fraction : float
        Size of a deleted block (``draws.deletion_starts`` says whether there is any).
    max_rows : int, optional
        Of the rows that block deletion leaves, this many are drawn, the query included.
    """
    kept = kept_rows(num_rows, draws.deletion_starts, block_fraction)
    order = draws.row_order[kept[draws.row_order]]
    if max_rows is not None:
        order = order[: max_rows - 1]  # in random order: a uniform draw
    centres = np.concatenate([np.zeros(1, np.int64), order[: max_clusters - 1]])
    return RowChoice(centres, order[max_clusters - 1 :])
