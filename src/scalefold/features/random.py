"""Counter-based random numbers: each is a pure function of a key, without any state.

A key is a purpose and some integers (run seed, draw index, pass, ...). It is hashed to 128 bits
that key a Philox generator (Salmon et al. 2011), whose raw 64-bit words are taken. Only raw words
are used, since NumPy keeps their values from release to release, but not those of its
distributions. So any number can be made again alone, in any process and in any order.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""Independent, uniform 64-bit words."""


def key_bits(purpose: str, *counters: int, bits: int = 128) -> int:
    """Hash a key to an integer of ``bits`` bits (a multiple of 8, at most 512).

    Parameters
    ----------
    purpose : str
        Names the use, so that two uses with the same counters are independent.
    *counters : int
        Any integers that fit in 64 bits, signed.
    """
    digest = hashlib.blake2b(digest_size=bits // 8, person=b"scalefold-draws")
    digest.update(purpose.encode() + b"\0")
    for counter in counters:
        digest.update(counter.to_bytes(8, "little", signed=True))
    return int.from_bytes(digest.digest(), "little")


def name_counter(name: str) -> int:
    """Turn a name (a chain key) into a counter for :func:`key_bits`."""
    return key_bits(f"name:{name}", bits=56)


def words(count: int, purpose: str, *counters: int) -> Words:
    """Return ``count`` words of the stream that the key names."""
    return np.random.Philox(key=key_bits(purpose, *counters)).random_raw(count)


def unit_floats(source: Words) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), multiples of 2^-53."""
    return (source >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def unit_float_pairs(source: Words) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Two independent arrays of uniform float32 numbers in [0, 1), multiples of 2^-24."""
    scale = np.float32(2.0**-24)
    high = (source >> np.uint64(40)).astype(np.float32) * scale
    low = ((source >> np.uint64(8)) & np.uint64(0xFFFFFF)).astype(np.float32) * scale
    return high, low


def integers_below(unit: NDArray[np.float64], bound: int) -> NDArray[np.int64]:
    """Uniform integers in [0, bound) from uniform numbers; the bias is below bound / 2^53."""
    return np.floor(unit * bound).astype(np.int64)


def permutation(source: Words) -> NDArray[np.int64]:
    """Uniform permutation of ``range(len(source))``.

    Places are sorted by their words, with the place itself in the lowest bits. No two are equal,
    and plain numbers sort several times faster than an index array.
    """
    count = len(source)
    place_bits = np.uint64(max(count - 1, 1).bit_length())
    keys = (source >> place_bits << place_bits) | np.arange(count, dtype=np.uint64)
    keys.sort()
    return (keys & ((np.uint64(1) << place_bits) - np.uint64(1))).astype(np.int64)
