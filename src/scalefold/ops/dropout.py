"""Dropout whose mask is a pure function of where it acts.

A mask element depends on (key of the sample, layer number, coordinates) and on nothing else: not on
the device, the generator's state, the tensor's shape, the rank, or the number of ranks. So a
recomputed block, a replayed graph and a shard all see the mask of the plain run.

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


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_UNIFORM_BITS = 24


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


def random_bits(
    key_B: Tensor, layer: int, shape: Sequence[int], start: Sequence[int] | None = None
) -> Tensor:
    """64 random bits for each element of a block of coordinates.

    Parameters
    ----------
    key_B : Tensor, shape (B,), int64
        Key of each sample.
    layer : int
        Number of the layer that asks.
    shape : sequence of int
        Sizes of the block, without B.
    start : sequence of int, optional
        Global coordinates of the block's first element; default zeros.

    Returns
    -------
    Tensor, shape (B, *shape), int64
    """
    state = mix(mix(key_B, 0), layer)
    for dim, size in enumerate(shape):
        first = start[dim] if start is not None else 0
        coordinate = torch.arange(first, first + size, device=key_B.device)
        state = mix(state[..., None], coordinate)
    return state


def dropout_mask(
    key_B: Tensor,
    layer: int,
    rate: float,
    shape: Sequence[int],
    start: Sequence[int] | None = None,
) -> Tensor:
    """Which elements are kept; arguments as ``random_bits``, True with probability 1 - rate.

    The probability is exact to 2^-24.
    """
    bits = random_bits(key_B, layer, shape, start)
    uniform = (bits >> (64 - _UNIFORM_BITS)) & ((1 << _UNIFORM_BITS) - 1)
    return uniform >= round(rate * (1 << _UNIFORM_BITS))


class Dropout(NamedTuple):
    """Dropout of one layer in one pass: all that its mask depends on but the coordinates.

    Attributes
    ----------
    key : Tensor, shape (B,), int64
    layer : int
    rate : float
        Probability of being dropped, in [0, 1).
    shared_dim : int or None
        Dimension, counted from the end, over which one mask is shared (Suppl. sec. 1.11.6). Where
        a tensor is sharded, it is along this dimension, so no rank needs to know its offset.
    """

    key: Tensor
    layer: int
    rate: float
    shared_dim: int | None


def residual_dropout(
    x: Tensor, update: Tensor, key_B: Tensor, layer: int, rate: float, shared_dim: int | None
) -> Tensor:
    """``x`` plus the update with dropped elements zeroed and the rest scaled up.

    Parameters
    ----------
    x, update : Tensor, shape (B, ...)
    key_B, layer, rate, shared_dim
        See `Dropout`.
    """
    shape = list(update.shape[1:])
    if shared_dim is not None:
        shape[shared_dim] = 1
    keep = dropout_mask(key_B, layer, rate, shape)
    return x + update * (keep.to(update.dtype) * (1.0 / (1.0 - rate)))
