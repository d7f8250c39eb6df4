"""What the launches of residual linear maps are given."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from scalefold_kernels.dropout.arguments import Dropout, drawing
from scalefold_kernels.limits import check_rows


class Update:
    """What all kernels need to know of their arguments.

    Parameters
    ----------
    x : Tensor, shape (B, ..., C)
    weight : Tensor, shape (C, K)
    dropout : Dropout or None
    """

    def __init__(self, x: Tensor, weight: Tensor, dropout: Dropout | None) -> None:
        self.dims = x.ndim - 1
        self.batch, *sizes, self.channels = x.shape
        self.size1, self.size2 = [1] * (3 - self.dims) + sizes
        self.inputs = weight.shape[1]
        self.device, self.dropout = weight.device, dropout
        self._dtype = str(weight.dtype).removeprefix("torch.")
        if dropout is not None:
            dropout.check(self.batch)
        self.shared = 0 if dropout is None else dropout.shared
        if 0 < self.shared <= 3 - self.dims:
            found = self.shared - 4
            raise ValueError(f"shared_dim must be in -{self.dims}...-1 or None, found {found}")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.batch * self.size1 * self.size2

    @property
    def shape(self) -> dict[str, int | str]:
        """What the tables' rules speak of."""
        sizes = {"rows": self.rows, "C": self.channels, "K": self.inputs, "shared": self.shared}
        return {**sizes, "dtype": self._dtype}

    @property
    def hashing(self) -> tuple[Any, ...]:
        """Key, layer, threshold and scale, as the kernels take them."""
        return drawing(self.dropout)

    @property
    def key_stride(self) -> int:
        """Of the samples' keys."""
        return 0 if self.dropout is None else self.dropout.key.stride(0)


def check(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Raise ValueError where the arguments do not fit together, or are too many rows."""
    check_rows(x)
    channels, inputs = weight.shape
    if not 2 <= x.ndim <= 4:
        raise ValueError(f"residual_linear takes 2 to 4 dimensions, found {tuple(x.shape)}")
    if x.shape != (*h.shape[:-1], channels) or h.shape[-1] != inputs or bias.shape != (channels,):
        raise ValueError(
            f"residual_linear of h {tuple(h.shape)} with weight {tuple(weight.shape)} and bias "
            f"{tuple(bias.shape)} does not give the shape of x, {tuple(x.shape)}"
        )
    if len({t.dtype for t in (x, h, weight, bias)}) > 1:
        raise ValueError(
            f"residual_linear takes one type; x is {x.dtype}, h {h.dtype}, weight {weight.dtype}, "
            f"bias {bias.dtype}"
        )
