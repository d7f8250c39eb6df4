"""What `op` hands to the backends of attention, by name, and the memory that they fill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.checks import check_batch, check_shapes, check_types
from scalefold_kernels.dot import block
from scalefold_kernels.limits import needs_int64
from scalefold_kernels.rows import channels_together
from scalefold_kernels.tiles import Config, config_for


class Call(NamedTuple):
    """One call of ``scalefold.ops.attention``: its arguments, channels contiguous."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor | None
    mask: Tensor
    bias: Tensor | None
    bias_scale: float
    scale: float

    @property
    def batch(self) -> int:
        return self.q.shape[0]

    @property
    def num_rows(self) -> int:
        return self.q.shape[1]

    @property
    def num_queries(self) -> int:
        return self.q.shape[2]

    @property
    def num_keys(self) -> int:
        return self.k.shape[2]

    @property
    def num_heads(self) -> int:
        return self.q.shape[3]

    @property
    def channels(self) -> int:
        return self.q.shape[4]

    @property
    def scales_q(self) -> bool:
        """Whether kernels multiply the queries, so that logits are in the bias's unit."""
        return self.bias is not None and not math.isclose(self.scale, self.bias_scale)

    @property
    def scalars(self) -> tuple[int, int, int, int, float]:
        """Numbers of rows, heads, queries and keys, and the scale, as every kernel takes them."""
        return self.num_rows, self.num_heads, self.num_queries, self.num_keys, self.scale

    @property
    def mask_strides(self) -> tuple[int, int, int]:
        """Strides of (B, R, K); that of R is 0 if all rows share one mask."""
        batch, row, key = self.mask.stride()
        return batch, row if self.mask.shape[1] > 1 else 0, key

    def config(self, kernel: str, arch: str | None = None) -> Config:
        bias = "no" if self.bias is None else "yes"
        sizes = {"Q": self.num_queries, "K": self.num_keys, "C": self.channels}
        return config_for(kernel, self.q, arch, bias=bias, **sizes)


class Kept(NamedTuple):
    """What forward leaves for backward."""

    out: Tensor  # the result, gated
    lse: Tensor  # logarithms of the softmax's sums, to base 2; see `new_statistics`
    rest: Tensor | None  # what rounding took from the result; see `rest` and `new_rest`


class Gradients(NamedTuple):
    """Where the gradients of q, k, v and gate are written."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor | None


def checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None,
    mask: Tensor,
    bias: Tensor | None,
    bias_scale: float = 1.0,
    scale: float | None = None,
) -> Call:
    """Arguments as the kernels take them.

    Raises ValueError where shapes or types do not fit, samples are too many, or a scale is not
    positive: kernels divide by it.
    """
    check_batch("attention", q)
    batch, rows, queries, heads, channels = q.shape
    scale = channels**-0.5 if scale is None else scale
    for name, number in (("bias_scale", bias_scale), ("scale", scale)):
        if not number > 0:
            raise ValueError(f"attention needs a {name} above 0, found {number}")
    keys = k.shape[2]
    named = (
        ("k", k, (batch, rows, keys, heads, channels)),
        ("v", v, (batch, rows, keys, heads, channels)),
        ("gate", gate, q.shape),
        ("mask", mask, (batch, 1 if mask.shape[1] == 1 else rows, keys)),
        ("bias", bias, (batch, heads, queries, keys)),
    )
    check_shapes(f"attention of q {tuple(q.shape)}", named)
    check_types("attention", (x for x in (q, k, v, gate) if x is not None))
    q, k, v = map(_heads_near, (q, k, v))
    gate = None if gate is None else _heads_near(gate)
    return Call(q, k, v, gate, mask, bias, 1.0 if bias is None else bias_scale, scale)


def _heads_near(x: Tensor) -> Tensor:
    """Return ``x``, or a copy if channels are strided or a position's heads need 64-bit offsets.

    Heads may be that far apart in layouts that have them before the positions.
    """
    return x.contiguous() if needs_int64(x[:1, :1, :1]) else channels_together(x)


def new_rows(shape: Sequence[int], like: Tensor) -> Tensor:
    """New memory (B, R, N, ...) with rows and positions in the order in which ``like`` has them.

    Thus attention along columns, a transposed view, gives the transposed view of a dense tensor.
    """
    batch, rows, length, *others = shape
    if like.stride(1) < like.stride(2):
        return like.new_empty((batch, length, rows, *others)).transpose(1, 2)
    return like.new_empty((batch, rows, length, *others))


def transposed(bias: Tensor | None) -> bool:
    """Whether queries, not keys, are contiguous in a bias (the ending node's)."""
    return bias is not None and bias.stride(-1) != 1


def in_memory(bias: Tensor) -> Tensor:
    """A bias, or memory like it, with queries and keys in the order of its memory."""
    return bias.mT if transposed(bias) else bias


def new_sums(bias: Tensor, groups: int) -> Tensor:
    """New memory for sums of a bias's gradient over groups of rows: (groups, *in_memory(bias))."""
    return bias.new_empty((groups, *in_memory(bias).shape), dtype=torch.float32)


def new_statistics(q: Tensor) -> Tensor:
    """New memory (B, R, H, Q), one number a softmax; heads start at multiples of 16 bytes."""
    batch, rows, queries, heads, _ = q.shape
    padded = (batch, rows, heads, _padded(queries))
    return torch.empty(padded, device=q.device, dtype=torch.float32)[..., :queries]


def new_rest(q: Tensor) -> Tensor:
    """New memory (B, R, Q, H, C) for `Kept.rest`: heads apart, as far as those of statistics.

    Channels are padded to those that kernels compute with: TMA takes no fewer than 16 bytes.
    """
    batch, rows, queries, heads, channels = q.shape
    memory = (batch, rows, heads, _padded(queries), block(channels))
    return q.new_empty(memory, dtype=torch.int8).transpose(2, 3)[:, :, :queries]


def _padded(queries: int) -> int:
    return -(-queries // 4) * 4
