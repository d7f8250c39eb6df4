"""An alignment on a device: dense symbols, sparse deletions.

Legend: R rows, N residues of the full chain, D positions with a deletion to their left, W residues
of a window (the crop).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scalefold.errors import InputError
from scalefold.shards.records import ChainRecord, MsaRecord


class Window(NamedTuple):
    """Residues ``start`` to ``start + size`` of a chain."""

    start: int
    size: int

    @property
    def stop(self) -> int:
        """One past the last residue."""
        return self.start + self.size


class Alignment(NamedTuple):
    """An alignment, query first.

    Attributes
    ----------
    symbols : Tensor, shape (R, N), uint8
        0-19 residues, 20 unknown, 21 gap.
    deletion_row, deletion_column, deletion_count : Tensor, shape (D,), int64
        Residues deleted to the left of a position, where there are any.
    profile : Tensor, shape (N, 22), float32
        Frequency of each symbol over the full alignment.
    """

    symbols: Tensor
    deletion_row: Tensor
    deletion_column: Tensor
    deletion_count: Tensor
    profile: Tensor

    @staticmethod
    def from_record(msa: MsaRecord, chain: ChainRecord, device: torch.device) -> Alignment:
        """Move a stored alignment to a device.

        Raises
        ------
        InputError
            If the alignment is not of this chain.
        """
        num_rows, width = msa.msa.shape
        if width != len(chain):
            raise InputError(
                f"{chain.chain_key}: alignment is {width} columns wide, the sequence has "
                f"{len(chain)} residues: pack the chain again from its own alignment"
            )
        if num_rows == 0 or not np.array_equal(msa.msa[0], chain.aatype):
            raise InputError(
                f"{chain.chain_key}: the first of {num_rows} alignment rows is not the chain's "
                "sequence: pack the chain again from its own alignment"
            )
        ends = msa.del_ptr.astype(np.int64)
        lengths = ends[1:] - ends[:-1]
        return Alignment(
            symbols=torch.from_numpy(msa.msa).to(device),
            deletion_row=torch.from_numpy(np.repeat(np.arange(num_rows), lengths)).to(device),
            deletion_column=torch.from_numpy(msa.del_col.astype(np.int64)).to(device),
            deletion_count=torch.from_numpy(msa.del_val.astype(np.int64)).to(device),
            profile=torch.from_numpy(msa.profile).to(device),
        )


def deletion_matrix(alignment: Alignment, rows: Tensor, window: Window) -> Tensor:
    """Dense deletion counts of some rows.

    Parameters
    ----------
    alignment : Alignment
    rows : Tensor, shape (K,), int64
        Distinct rows.
    window : Window

    Returns
    -------
    Tensor, shape (K, W), float32
    """
    place = rows.new_full((alignment.symbols.shape[0],), -1)
    place[rows] = torch.arange(len(rows), device=rows.device)
    row, column, count = _in_window(alignment, place, window)
    matrix = torch.zeros((len(rows), window.size), device=rows.device)
    matrix[row, column] = count.float()
    return matrix


def deletion_sums(alignment: Alignment, group: Tensor, num_groups: int, window: Window) -> Tensor:
    """Sum the deletion counts over groups of rows.

    Parameters
    ----------
    alignment : Alignment
    group : Tensor, shape (R,), int64
        Group of each row, -1: none.
    num_groups : int
    window : Window

    Returns
    -------
    Tensor, shape (num_groups, W), int64
        Exact: integers are summed.
    """
    row, column, count = _in_window(alignment, group, window)
    sums = count.new_zeros(num_groups * window.size)
    sums.index_add_(0, row * window.size + column, count)
    return sums.view(num_groups, window.size)


def _in_window(
    alignment: Alignment, place: Tensor, window: Window
) -> tuple[Tensor, Tensor, Tensor]:
    """Deletions whose row has a place >= 0 and whose column is in the window, renumbered."""
    row = place[alignment.deletion_row]
    column = alignment.deletion_column - window.start
    inside = (row >= 0) & (column >= 0) & (column < window.size)
    return row[inside], column[inside], alignment.deletion_count[inside]
