"""Tensors of any strides as rows of channels, the form in which kernels take them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from scalefold_kernels.checks import check_rows
from scalefold_kernels.tiles import Config, config_for

MAX_ROW_DIMS = 3


@dataclass(frozen=True)
class Rows:
    """All dimensions but the last, merged where memory allows it, slowest first."""

    tensor: Tensor  # that the strides describe: the input, or a copy of too many dimensions
    num_rows: int
    num_dims: int  # that remain, 1 to 3
    sizes: tuple[int, int]  # of the last two of three dimensions
    strides: tuple[int, int, int, int]  # of three dimensions and of the channels

    @property
    def geometry(self) -> tuple[int, ...]:
        """Sizes and strides as kernels take them."""
        return (*self.sizes, *self.strides)

    def matrix(self) -> Tensor:
        """Rows with one stride as a matrix."""
        size = self.num_rows, self.tensor.shape[-1]
        return self.tensor.as_strided(size, (self.strides[2], self.strides[3]))

    def config(self, kernel: str, arch: str | None = None, **more: int) -> Config:
        sizes = {"rows": self.num_rows, "C": self.tensor.shape[-1], **more}
        return config_for(kernel, self.tensor, arch, **sizes)


def rows_of(x: Tensor) -> Rows:
    """Describe ``x`` (..., C) as rows; a copy only where kernels cannot take its strides.

    These take three row dimensions, and the channels of a row 2^31 - 1 elements apart.

    Raises ValueError where there are more rows than kernels take.
    """
    check_rows(x)
    merged = _merged(x)
    if len(merged) > MAX_ROW_DIMS or (x.shape[-1] - 1) * x.stride(-1) >= 2**31:
        x = x.contiguous()
        merged = _merged(x)
    num_rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    padded = [(1, 0)] * (MAX_ROW_DIMS - len(merged)) + merged
    (_, stride0), (size1, stride1), (size2, stride2) = padded
    strides = (stride0, stride1, stride2, x.stride(-1))
    return Rows(x, num_rows, max(len(merged), 1), (size1, size2), strides)


def _merged(x: Tensor) -> list[tuple[int, int]]:
    """(size, stride) of the row dimensions, neighbours merged where one stride covers both."""
    merged: list[tuple[int, int]] = []
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def channels_together(x: Tensor) -> Tensor:
    """Return ``x`` if its last dimension is contiguous, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()
