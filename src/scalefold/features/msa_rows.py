"""Which rows of an alignment are used: block deletion, cluster centres and extra rows.

Suppl. Alg. 1 and sec. 1.2.6, 1.2.7. Row 0, the query, is always the first cluster centre.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalefold.features.sample_random import MsaRandom


class MsaRows(NamedTuple):
    """Rows of one pass.

    Attributes
    ----------
    centres : ndarray, shape (min(max_clusters, kept rows),), int64
        Cluster centres, the query first.
    others : ndarray, int64
        All other rows that block deletion leaves, in random order. They are clustered; the first of
        them are the extra rows.
    """

    centres: NDArray[np.int64]
    others: NDArray[np.int64]


def kept_rows(num_rows: int, starts: NDArray[np.int64], fraction: float) -> NDArray[np.bool_]:
    """Delete contiguous blocks of rows (Suppl. Alg. 1).

    Neighbouring rows are similar sequences of one search, so blocks remove whole subfamilies.

    Parameters
    ----------
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


def select_rows(
    num_rows: int,
    random: MsaRandom,
    max_clusters: int,
    block_fraction: float,
    max_rows: int | None = None,
) -> MsaRows:
    """Select cluster centres at random; all other rows are clustered.

    Parameters
    ----------
    block_fraction : float
        Size of a deleted block (``random.deletion_starts`` says whether there is any).
    max_rows : int, optional
        Rows to use of those that block deletion leaves, the query included.
    """
    kept = kept_rows(num_rows, random.deletion_starts, block_fraction)
    order = random.row_order[kept[random.row_order]]
    if max_rows is not None:
        order = order[: max_rows - 1]  # they are in random order
    centres = np.concatenate([np.zeros(1, np.int64), order[: max_clusters - 1]])
    return MsaRows(centres, order[max_clusters - 1 :])
