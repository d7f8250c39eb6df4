"""Products of triangle multiplication: one of matrices for each channel and sample.

On Hopper GPUs a kernel of our own makes both gradients in one launch; elsewhere, and where its
tiles would be padding for a quarter, it is `torch.bmm`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.gpu import runs_gluon
from scalefold_kernels.tma import num_ctas, reachable, tiles_of
from scalefold_kernels.triangle.hopper.product import BLOCK, DEPTH, GROUPS, batched_products_kernel

_STAGES = 3
"""As many as there is room for beside the result."""

_REGISTERS = 232
"""Of a thread of the warp groups."""


class Product(NamedTuple):
    """Of x (C, B, rows, inner) and y (C, B, inner, columns), plain or transposed in memory."""

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Product:
        """Copies what is neither.

        Raises
        ------
        ValueError
            They have not the same C, B and inner dimension.
        """
        if x.shape[:2] != y.shape[:2] or x.shape[3] != y.shape[2]:
            raise ValueError(
                f"triangle multiplication: no products of matrices {tuple(x.shape)} and "
                f"{tuple(y.shape)}; channels, samples and inner dimension must be the same"
            )
        return cls(
            *(t if t.is_contiguous() or t.mT.is_contiguous() else t.contiguous() for t in (x, y))
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns, inner dimension."""
        return self.x.shape[2], self.y.shape[3], self.x.shape[3]

    @property
    def num_tiles(self) -> int:
        """Of a matrix of the result."""
        rows, columns, _ = self.sizes
        return triton.cdiv(rows, GROUPS.value * BLOCK.value) * triton.cdiv(columns, BLOCK.value)

    def fills_tiles(self) -> bool:
        """Whether the kernel is the faster one."""
        rows, columns, _ = self.sizes
        return 4 * rows * columns > 3 * self.num_tiles * GROUPS.value * BLOCK.value**2

    def reachable(self) -> bool:
        """Whether the kernel can take the operands."""
        return all(
            runs_gluon(t)
            and t.dtype == torch.bfloat16
            and t.numel() > 0
            and reachable(t if _plain(t) else t.mT)
            for t in self
        )

    def descriptors(self, out: Tensor) -> tuple[TensorDescriptor, ...]:
        """Of both operands' blocks as they lie in memory, and of the result's."""
        block, depth = BLOCK.value, DEPTH.value
        x, y, out = (t.flatten(0, 1) for t in (*self, out))
        return (
            tiles_of(x, 1, block, depth) if _plain(x) else tiles_of(x.mT, 1, depth, block),
            tiles_of(y, 1, depth, block) if _plain(y) else tiles_of(y.mT, 1, block, depth),
            tiles_of(out, 1, block, block),
        )


def products(*pairs: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Products (C, B, rows, columns), contiguous, of one or two pairs of one C and B.

    A pair is (C, B, rows, inner) and (C, B, inner, columns).
    """
    todo = [Product.of(*pair) for pair in pairs]
    if all(product.fills_tiles() and product.reachable() for product in todo):
        return launch(todo)
    return [torch.bmm(x.flatten(0, 1), y.flatten(0, 1)).unflatten(0, x.shape[:2]) for x, y in todo]


def launch(todo: list[Product]) -> list[Tensor]:
    """One or two products in one launch; the second one's arguments are unused where it is one."""
    first, last = todo[0], todo[-1]
    results = [p.x.new_empty(*p.x.shape[:2], *p.sizes[:2]) for p in todo]
    batch = first.x.shape[0] * first.x.shape[1]
    num_tiles = batch * max(product.num_tiles for product in todo)
    batched_products_kernel[(num_ctas(num_tiles, first.x.device),)](
        *first.descriptors(results[0]), *first.sizes, *last.descriptors(results[-1]), *last.sizes,
        batch, PRODUCTS=len(todo), STAGES=_STAGES, REGISTERS=_REGISTERS,
    )  # fmt: skip
    return results


def _plain(x: Tensor) -> bool:
    return x.stride(-1) == 1
