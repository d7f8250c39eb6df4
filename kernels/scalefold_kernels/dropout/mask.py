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

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """An unsigned 64-bit constant as torch's int64 (two's complement)."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
UNIFORM_BITS = 24


def mix(state: Tensor, coordinate: Tensor | int) -> Tensor:
    """Fold a coordinate into a hash state; int64 arithmetic modulo 2^64, broadcasting.

    Parameters
    ----------
    state : Tensor, int64
    coordinate : Tensor, int64, or int
        Non-negative; broadcast against ``state``.
    """
    if isinstance(coordinate, int):
        x = state + _signed((coordinate + 1) * _GOLDEN % (1 << 64))
    else:
        x = state + (coordinate + 1) * _GOLDEN
    # ">>" on int64 copies the sign; the mask makes the shift logical.
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def hashed(key_B: Tensor, layer: int, coordinates: Sequence[Tensor]) -> Tensor:
    """64 random bits for each combination of coordinates.

    Parameters
    ----------
    key_B : Tensor, shape (B,), int64
        Key of each sample.
    layer : int
        Number of the layer that asks.
    coordinates : sequence of Tensor, int64
        Those along each dimension.

    Returns
    -------
    Tensor, shape (B, ...), int64
    """
    state = mix(mix(key_B, 0), layer)
    for coordinate in coordinates:
        state = mix(state[..., None], coordinate)
    return state


def random_bits(
    key_B: Tensor, layer: int, shape: Sequence[int], start: Sequence[int] | None = None
) -> Tensor:
    """64 random bits for each element of a block of coordinates.

    Parameters
    ----------
    key_B, layer
        See `hashed`.
    shape : sequence of int
        Sizes of the block, without B.
    start : sequence of int, optional
        Global coordinates of the block's first element; default zeros.

    Returns
    -------
    Tensor, shape (B, *shape), int64
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
