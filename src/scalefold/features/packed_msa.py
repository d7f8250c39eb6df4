"""An alignment as tensors: dense symbols, sparse deletions.

Legend: R rows, N residues of the full chain, D positions with a deletion to their left, M columns
of the crop.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scalefold.errors import InputError
from scalefold.features.query import Query


class Msa(NamedTuple):
    """An alignment on the device, query first.

    Attributes
    ----------
    symbols : Tensor, shape (R, N), uint8
        0-19 residues, 20 unknown, 21 gap.
    deletion_row, deletion_column, deletion_count : Tensor, shape (D,), int64
        Positions with deleted residues to their left, and how many.
    """

    symbols: Tensor
    deletion_row: Tensor
    deletion_column: Tensor
    deletion_count: Tensor


class PackedMsa(NamedTuple):
    """An alignment as the shards have it: small, to be sent to another process or a GPU.

    Attributes
    ----------
    symbols : Tensor, shape (R, N), uint8
    deletion_end : Tensor, shape (R,), int32
        One past the last deletion of each row.
    deletion_column, deletion_count : Tensor, shape (D,), int16
        Bits of unsigned numbers, for which torch lacks operators.
    """

    symbols: Tensor
    deletion_end: Tensor
    deletion_column: Tensor
    deletion_count: Tensor

    @staticmethod
    def of(query: Query) -> PackedMsa:
        """Check a query's alignment and share its memory.

        Raises
        ------
        InputError
            If the alignment is not of this chain.
        """
        msa = query.msa
        num_rows, width = msa.msa.shape
        if width != len(query):
            raise InputError(
                f"{query.name}: alignment is {width} columns wide, the sequence has "
                f"{len(query)} residues: pack the chain again from its own alignment"
            )
        if num_rows == 0 or not np.array_equal(msa.msa[0], query.aatype):
            raise InputError(
                f"{query.name}: the first of {num_rows} alignment rows is not the chain's "
                "sequence: pack the chain again from its own alignment"
            )
        return PackedMsa(
            symbols=torch.from_numpy(msa.msa),
            deletion_end=torch.from_numpy(msa.del_ptr[1:].view(np.int32)),
            deletion_column=torch.from_numpy(msa.del_col.view(np.int16)),
            deletion_count=torch.from_numpy(msa.del_val.view(np.int16)),
        )

    def unpack(self) -> Msa:
        """Number the rows of the deletions, on the device that the alignment is on."""
        number = torch.arange(
            len(self.deletion_count), dtype=torch.int32, device=self.symbols.device
        )
        return Msa(
            symbols=self.symbols,
            deletion_row=torch.bucketize(number, self.deletion_end, right=True),
            deletion_column=self.deletion_column.long() & 0xFFFF,
            deletion_count=self.deletion_count.long() & 0xFFFF,
        )


def deletion_matrix(msa: Msa, rows: Tensor, columns: Tensor) -> Tensor:
    """Dense deletion counts of some rows.

    Parameters
    ----------
    rows : Tensor, shape (K,), int64
        Distinct rows.
    columns : Tensor, shape (M,), int64
        Distinct columns.

    Returns
    -------
    Tensor, shape (K, M), float32
    """
    place = _places(rows, len(msa.symbols))
    matrix = torch.zeros(len(rows) * len(columns) + 1, device=rows.device)
    slots = _slots(msa, place, len(rows), columns)
    matrix.scatter_(0, slots, msa.deletion_count.float())
    return matrix[:-1].view(len(rows), len(columns))


def deletion_sums(msa: Msa, group: Tensor, num_groups: int, columns: Tensor) -> Tensor:
    """Sum the deletion counts over groups of rows.

    Parameters
    ----------
    group : Tensor, shape (R,), int64
        Group of each row, -1: none.
    columns : Tensor, shape (M,), int64
        Distinct columns.

    Returns
    -------
    Tensor, shape (num_groups, M), int64
        Exact: integers are summed.
    """
    sums = group.new_zeros(num_groups * len(columns) + 1)
    sums.scatter_add_(0, _slots(msa, group, num_groups, columns), msa.deletion_count)
    return sums[:-1].view(num_groups, len(columns))


def _places(chosen: Tensor, size: int) -> Tensor:
    """Place of each of 0 to ``size - 1`` among those chosen, -1: none."""
    place = chosen.new_full((size,), -1)
    place[chosen] = torch.arange(len(chosen), device=chosen.device)
    return place


def _slots(msa: Msa, place: Tensor, num_places: int, columns: Tensor) -> Tensor:
    """Index of each deletion in (places, M), flattened.

    Deletions in other columns, or in rows of place -1, go into one more slot at the end. To leave
    them out would make a tensor of unknown size, for which a GPU's host would wait.
    """
    row = place[msa.deletion_row]
    column = _places(columns, msa.symbols.shape[1])[msa.deletion_column]
    inside = (row >= 0) & (column >= 0)
    return torch.where(inside, row * len(columns) + column, num_places * len(columns))
