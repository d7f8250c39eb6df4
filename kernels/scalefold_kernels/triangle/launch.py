"""Triangle multiplication: what the kernels are launched with.

Between the parts, operands and product are (C, B, I, J): positions last, so that the product is one
batched matrix product of plain matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from scalefold_kernels.tiles import Tile, architecture, tile
from scalefold_kernels.triangle import kernel

EPS = 1e-5
"""Added to the variance, as in `scalefold.ops.norm`."""


@dataclass(frozen=True)
class Sizes:
    """What tiles are chosen by: positions P, pair channels Z, hidden channels C."""

    positions: int
    pair: int
    hidden: int
    dtype: torch.dtype
    arch: str

    @classmethod
    def of(cls, x: Tensor, positions: int, pair: int, hidden: int) -> Sizes:
        """With the type and the GPU of a tensor."""
        return cls(positions, pair, hidden, x.dtype, architecture(x.device))

    def tile(self, name: str, **limits: int) -> Tile:
        """Tile of a kernel; no block of it larger than its entry in ``limits`` needs."""
        shape: dict[str, int | str] = {"P": self.positions, "Z": self.pair, "C": self.hidden}
        shape["dtype"] = str(self.dtype).removeprefix("torch.")
        found = tile(f"triangle_{name}", self.arch, shape)
        return found | {name: min(found[name], block(size)) for name, size in limits.items()}

    def constants(self) -> dict[str, int | str]:
        """Compile-time constants that the kernels of the two parts share."""
        return {"Z": self.pair, "C": self.hidden, "PRECISION": self.precision}

    @property
    def precision(self) -> str:
        """How float32 is multiplied: without rounding it to TensorFloat-32."""
        return "ieee" if self.dtype == torch.float32 else "tf32"


def block(size: int) -> int:
    """Smallest tile of a matrix product that holds ``size``."""
    return max(16, triton.next_power_of_2(size))


def projection(z: Tensor, mask: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Operands (C, B, I, J), gate, and the mean and reciprocal deviation of each position."""
    hidden, pair = parameters[2].shape
    sizes = Sizes.of(z, mask.numel(), pair, hidden)
    a = z.new_empty(hidden, *mask.shape)
    b, gate = torch.empty_like(a), torch.empty_like(z)
    mean, reciprocal = _statistics(mask)
    blocks = sizes.tile("projection_forward", BLOCK_C=min(hidden, pair))
    kernel.projection_forward[(triton.cdiv(sizes.positions, blocks["BLOCK_P"]),)](
        z, mask, *parameters, a, b, gate, mean, reciprocal, sizes.positions, EPS,
        BLOCK_Z=block(pair), **sizes.constants(), **blocks,
    )  # fmt: skip
    return a, b, gate, mean, reciprocal


def projection_backward(
    gradients: Sequence[Tensor],
    z: Tensor,
    mask: Tensor,
    operands: Sequence[Tensor],
    statistics: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Gradient of z; gradients of the parameters, one after the other in one vector."""
    scale, shift, a_w, _, a_gate_w, a_gate_b, b_w, _, b_gate_w, b_gate_b, gate_w, _ = parameters
    hidden, pair = a_w.shape
    sizes = Sizes.of(z, mask.numel(), pair, hidden)
    d_z, standard = torch.empty_like(z), torch.empty_like(z)
    d_values = z.new_empty(4 * hidden, sizes.positions)
    blocks = sizes.tile("projection_backward", BLOCK_C=min(hidden, pair))
    kernel.projection_backward[(triton.cdiv(sizes.positions, blocks["BLOCK_P"]),)](
        *gradients, z, mask, *statistics, *operands, scale, shift,
        a_w, a_gate_w, a_gate_b, b_w, b_gate_w, b_gate_b, gate_w,
        d_z, d_values, standard, sizes.positions,
        BLOCK_Z=block(pair), **sizes.constants(), **blocks,
    )  # fmt: skip
    partial, partial_bias = _partial(z, sizes, "projection_weights", 4 * hidden + pair, pair)
    blocks = sizes.tile("projection_weights", BLOCK_R=max(pair, hidden), BLOCK_N=pair)
    rows = triton.cdiv(4 * hidden, blocks["BLOCK_R"]) + triton.cdiv(pair, blocks["BLOCK_R"])
    kernel.projection_weights[(blocks.pop("PARTS"), rows, triton.cdiv(pair, blocks["BLOCK_N"]))](
        d_values, gradients[2], standard, partial, partial_bias, sizes.positions,
        **sizes.constants(), **blocks,
    )  # fmt: skip
    weights = [a_w, a_gate_w, b_w, b_gate_w, gate_w]
    return d_z, _finish(sizes, partial, partial_bias, scale, shift, weights)


def output(product: Tensor, gate: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Update (B, I, J, Z), and the mean and reciprocal deviation of each position's product."""
    pair, hidden = parameters[2].shape
    sizes = Sizes.of(gate, product[0].numel(), pair, hidden)
    out = torch.empty_like(gate)
    mean, reciprocal = _statistics(product[0])
    blocks = sizes.tile("output_forward", BLOCK_Z=pair)
    kernel.output_forward[(triton.cdiv(sizes.positions, blocks["BLOCK_P"]),)](
        product, gate, *parameters, out, mean, reciprocal, sizes.positions, EPS,
        BLOCK_C=block(hidden), **sizes.constants(), **blocks,
    )  # fmt: skip
    return out, mean, reciprocal


def output_backward(
    d_out: Tensor,
    product: Tensor,
    gate: Tensor,
    statistics: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of product and gate; of the parameters, one after the other in one vector."""
    scale, shift, weight, _ = parameters
    pair, hidden = weight.shape
    sizes = Sizes.of(gate, product[0].numel(), pair, hidden)
    d_product, standard = torch.empty_like(product), torch.empty_like(product)
    d_gate, d_value = torch.empty_like(gate), torch.empty_like(gate)
    blocks = sizes.tile("output_backward", BLOCK_Z=pair)
    kernel.output_backward[(triton.cdiv(sizes.positions, blocks["BLOCK_P"]),)](
        d_out, product, gate, *statistics, *parameters,
        d_product, d_gate, d_value, standard, sizes.positions,
        BLOCK_C=block(hidden), **sizes.constants(), **blocks,
    )  # fmt: skip
    partial, partial_bias = _partial(gate, sizes, "output_weights", pair, hidden)
    blocks = sizes.tile("output_weights", BLOCK_R=pair, BLOCK_N=hidden)
    rows = triton.cdiv(pair, blocks["BLOCK_R"])
    kernel.output_weights[(blocks.pop("PARTS"), rows, triton.cdiv(hidden, blocks["BLOCK_N"]))](
        d_value, standard, partial, partial_bias, sizes.positions,
        **sizes.constants(), **blocks,
    )  # fmt: skip
    return d_product, d_gate, _finish(sizes, partial, partial_bias, scale, shift, [weight])


def _statistics(like: Tensor) -> tuple[Tensor, Tensor]:
    mean = torch.empty(like.shape, dtype=torch.float32, device=like.device)
    return mean, torch.empty_like(mean)


def _partial(
    like: Tensor, sizes: Sizes, name: str, rows: int, columns: int
) -> tuple[Tensor, Tensor]:
    """Where the parts of the sums over positions go: their number is the tile's."""
    parts = sizes.tile(name)["PARTS"]
    partial = like.new_empty(parts, rows, columns, dtype=torch.float32)
    return partial, partial.new_empty(parts, rows)


def _finish(
    sizes: Sizes,
    partial: Tensor,
    partial_bias: Tensor,
    scale: Tensor,
    shift: Tensor,
    weights: Sequence[Tensor],
) -> Tensor:
    """Gradients of scale, shift, and each weight and its bias, all in one vector."""
    parts, total, columns = partial.shape
    rows, last = weights[0].shape[0], weights[-1].shape[0]
    gradients = scale.new_empty(2 * columns + total * (columns + 1))
    blocks = sizes.tile("finish_weights")
    grid = triton.cdiv(max(rows, last), blocks["BLOCK_R"]), len(weights)
    share = partial.new_empty(grid[0] * grid[1], 2 * columns)
    unused = [weights[0]] * (5 - len(weights))
    kernel.finish_weights[grid](
        partial, partial_bias, scale, shift, *weights, *unused,
        gradients, share, parts, total, rows, last,
        COLUMNS=columns, BLOCK_N=triton.next_power_of_2(columns), **blocks,
    )  # fmt: skip
    blocks = sizes.tile("sum_rows")
    kernel.sum_rows[(triton.cdiv(2 * columns, blocks["BLOCK_N"]),)](
        share, gradients, *share.shape, **blocks
    )
    return gradients
