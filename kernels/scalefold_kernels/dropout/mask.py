"""Dropout whose mask is a pure function of where it acts.

A mask element depends on (key of the sample, layer number, coordinates) and on nothing else: not on
the device, the generator's state, the tensor's shape, the rank, or the number of ranks. So a
block that is computed again, a replayed graph and a shard all see the mask of the plain run.

The generator is a keyed 64-bit hash: the finaliser of SplitMix64 (Steele, Lea, Flood 2014;
constants "mix 13" of Stafford 2011) is applied once for each coordinate, to the state so far plus
the coordinate times the golden-ratio increment. It needs integer multiplication, shift and xor
only, all exact, so every device gives the same bits, and all but the last coordinate's round run on
small tensors. It is no cryptographic generator and need not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """An unsigned 64-bit constant as torch's int64 (two's complement)."""
    return value - (1 << 64) if value >= 1 << 63 else value


GOLDEN = _signed(0x9E3779B97F4A7C15)
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)
UNIFORM_BITS = 24


def mix(state: Tensor, coordinate: Tensor | int) -> Tensor:
    """Fold a coordinate, 0 or more, into a hash state; int64 modulo 2^64, broadcasting."""
    if isinstance(coordinate, int):
        x = state + _signed((coordinate + 1) * GOLDEN % (1 << 64))
    else:
        x = state + (coordinate + 1) * GOLDEN
    # ">>" on int64 copies the sign; the mask makes the shift logical.
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def hashed(key_B: Tensor, layer: int, coordinates: Sequence[Tensor]) -> Tensor:
    """64 random bits, int64 (B, ...), for each sample's key and each combination of coordinates.

    ``layer`` is the number of the layer that asks; ``coordinates``, int64, are along one dimension.
    """
    state = mix(mix(key_B, 0), layer)
    for coordinate in coordinates:
        state = mix(state[..., None], coordinate)
    return state


def random_bits(
    key_B: Tensor, layer: int, shape: Sequence[int], start: Sequence[int] | None = None
) -> Tensor:
    """`hashed` of a block of coordinates: (B, *shape), int64.

    ``start``: global coordinates of the block's first element; zeros if not given.
    """
    first = [0] * len(shape) if start is None else start
    ranges = zip(first, shape, strict=True)
    return hashed(
        key_B, layer, [torch.arange(n, n + size, device=key_B.device) for n, size in ranges]
    )


def kept(bits: Tensor, rate: float) -> Tensor:
    """Which elements are kept by their bits: True with probability 1 - rate, exact to 2^-24."""
    uniform = (bits >> (64 - UNIFORM_BITS)) & ((1 << UNIFORM_BITS) - 1)
    return uniform >= round(rate * (1 << UNIFORM_BITS))


def dropout_mask(
    key_B: Tensor, layer: int, rate: float, shape: Sequence[int], start: Sequence[int] | None = None
) -> Tensor:
    """Which elements are kept; arguments as `random_bits`, probability as `kept`."""
    return kept(random_bits(key_B, layer, shape, start), rate)


class Dropout(NamedTuple):
    """Dropout of one layer in one pass: all that its mask depends on but the coordinates.

    One mask may be shared over a dimension (Suppl. sec. 1.11.6). Where a tensor is sharded, it is
    along this dimension, so no rank needs to know its offset.
    """

    key: Tensor  # (B,), int64
    layer: int
    rate: float  # probability of being dropped, in [0, 1)
    shared_dim: int | None  # counted from the end

    @property
    def threshold(self) -> int:
        """Below which a draw is dropped."""
        return round(self.rate * (1 << UNIFORM_BITS))

    @property
    def scale(self) -> float:
        """What is kept is multiplied with it."""
        return 1.0 / (1.0 - self.rate)

    @property
    def shared(self) -> int:
        """Which dimension behind the samples shares a mask, 1 to 3 with the last; 0 for none.

        Raises ValueError where it is none of the last three.
        """
        if self.shared_dim is None:
            return 0
        if not -3 <= self.shared_dim <= -1:
            raise ValueError(f"shared_dim must be in -3...-1 or None, found {self.shared_dim}")
        return 4 + self.shared_dim

    def applied(self, update: Tensor) -> Tensor:
        """The update (B, ...) with dropped elements zeroed and the others scaled up."""
        shape = list(update.shape[1:])
        if self.shared_dim is not None:
            shape[self.shared_dim] = 1
        keep = dropout_mask(self.key, self.layer, self.rate, shape)
        return torch.where(keep, update * self.scale, 0.0)

    def check(self, num_samples: int) -> None:
        """Raise ValueError where samples have not a key each, or the rate is no probability."""
        if not 0 <= self.rate < 1:
            raise ValueError(f"dropout needs a rate of 0 to below 1, found {self.rate}")
        if self.key.shape != (num_samples,) or self.key.dtype != torch.int64:
            raise ValueError(
                f"dropout of {num_samples} samples needs as many keys of int64, found "
                f"{tuple(self.key.shape)} of {self.key.dtype}"
            )


def drawing(dropout: Dropout | None) -> tuple[Tensor | None, int, int, float]:
    """Key, layer, threshold and scale, as kernels take them."""
    if dropout is None:
        return None, 0, 0, 1.0
    return dropout.key, dropout.layer, dropout.threshold, dropout.scale
