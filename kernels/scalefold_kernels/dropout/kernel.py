"""The hash of `mask`, as a device function for kernels that drop elements."""

import triton
import triton.language as tl

from scalefold_kernels.dropout import mask

GOLDEN, MIX_1, MIX_2 = map(tl.constexpr, (mask.GOLDEN, mask.MIX_1, mask.MIX_2))
UNIFORM_MASK = tl.constexpr((1 << mask.UNIFORM_BITS) - 1)
SHIFT = tl.constexpr(64 - mask.UNIFORM_BITS)


@triton.jit
def mix(state, coordinate):
    """Fold a coordinate into a hash state: int64 modulo 2^64; the masks make shifts logical."""
    x = state + (coordinate + 1).to(tl.int64) * GOLDEN
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


@triton.jit
def kept(state, threshold):
    """Whether elements are kept, of the hashes of all their coordinates."""
    return ((state >> SHIFT) & UNIFORM_MASK) >= threshold


@triton.jit
def hash_of(key_ptr, key_stride, sample, layer):
    """Hash of a sample's key and the layer, see `dropout_factor`."""
    return mix(mix(tl.load(key_ptr + sample * key_stride), tl.zeros((), tl.int32)), layer)


@triton.jit
def dropout_factor(state, c1, c2, c3, threshold, scale, DIMS: tl.constexpr, SHARED: tl.constexpr):
    """What an update is multiplied by: 0 where dropped, else ``scale``.

    Parameters
    ----------
    state
        Hash of key and layer: a number or (R, 1).
    c1, c2, c3
        Coordinates: a number or (R, 1), (R, 1) and (1, C). The result has this shape, or one that
        is broadcast to it where it does not depend on one of them (``SHARED``, 1 to 3; 0: none).
    DIMS : int
        How many of them there are, counted from the last.
    """
    zero = tl.zeros((1, 1), tl.int32)
    if DIMS == 3:
        state = mix(state, zero if SHARED == 1 else zero + c1)
    if DIMS >= 2:
        state = mix(state, zero if SHARED == 2 else c2)
    state = mix(state, zero if SHARED == 3 else c3)
    return tl.where(kept(state, threshold), scale, 0.0)
