"""Rings: places in shared memory that a loader fills in turn, some ahead of the warp groups.

Number i has place i % places. Two barriers belong to a place: ``full`` says that its tiles have
arrived, ``empty`` that all warp groups are done with them. Both complete once for each number of
the place, so that the phase to wait for is the parity of i // places.

``w``, where it is given, is one of two warp groups with places of their own, which alternate.
"""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from scalefold_kernels import smem
from scalefold_kernels.compiler import async_load

Barriers = namedtuple("Barriers", "full empty")
"""A ring whose places in shared memory are kept elsewhere."""

Ring = namedtuple("Ring", "desc slots full empty")
"""A ring of one tensor: how TMA reads it, places in shared memory, barriers."""


@gluon.jit
def barriers(PLACES: gl.constexpr, READERS: gl.constexpr):
    """Make the barriers of places that ``READERS`` warp groups give back."""
    return Barriers(smem.barriers(PLACES, 1), smem.barriers(PLACES, READERS))


@gluon.jit
def of_slots(desc, slots, READERS: gl.constexpr):
    """Make a `Ring` of this shared memory, whose places ``READERS`` warp groups give back.

    With 0 ``READERS`` tiles stay, see `fill`.
    """
    full = smem.barriers(slots.shape[0], 1)
    empty = full  # never waited for
    if READERS > 0:
        empty = smem.barriers(slots.shape[0], READERS)
    return Ring(desc, slots, full, empty)


@gluon.jit
def new(desc, PLACES: gl.constexpr, READERS: gl.constexpr):
    """Make a `Ring` as `of_slots`, with new shared memory."""
    return of_slots(desc, smem.tiles(desc, PLACES), READERS)


@gluon.jit
def along(ring, desc, PLACES: gl.constexpr):
    """A `Ring` of another tensor with the barriers of this one: `load_pair` fills both."""
    return Ring(desc, smem.tiles(desc, PLACES), ring.full, ring.empty)


@gluon.jit
def beside(ring, desc):
    """A `Ring` of another tensor, with tiles of the same size, in the same places."""
    return Ring(desc, ring.slots, ring.full, ring.empty)


@gluon.jit
def place(ring, i, w=None):
    """Place of number ``i``."""
    PLACES: gl.constexpr = ring.full.shape[0]
    if w is None:
        return i % PLACES
    else:  # noqa: RET505 (of constants)
        return i % (PLACES // 2) * 2 + w


@gluon.jit
def phase(ring, i, w=None):
    """Phase of the barrier ``full`` in which number ``i`` arrives; ``empty`` is one behind."""
    PLACES: gl.constexpr = ring.full.shape[0] if w is None else ring.full.shape[0] // 2
    return (i // PLACES) & 1


@gluon.jit
def wait_full(ring, i, w=None):
    """Wait until number ``i`` has arrived; returns its place."""
    at = place(ring, i, w)
    mbarrier.wait(ring.full.index(at), phase(ring, i, w))
    return at


@gluon.jit
def wait_empty(ring, i, BYTES: gl.constexpr, w=None):
    """Wait until there is room for number ``i``; returns its place.

    The place's barrier ``full`` then expects ``BYTES``.
    """
    at = place(ring, i, w)
    mbarrier.wait(ring.empty.index(at), phase(ring, i, w) ^ 1)
    mbarrier.expect(ring.full.index(at), BYTES)
    return at


@gluon.jit
def copy(ring, at, start, wanted=True):
    """Start the copy to a place if ``wanted``; the place's barrier already expects its bytes."""
    tile = smem.as_described(ring.slots.index(at), ring.desc)
    async_load(ring.desc, start, ring.full.index(at), tile, pred=wanted)


@gluon.jit
def fill(ring, i, start):
    """Start the copy of number ``i``, which begins at ``start``, to a place that is still empty."""
    at = place(ring, i)
    smem.load(ring.desc, start, ring.full.index(at), ring.slots.index(at))


@gluon.jit
def load(ring, i, start, w=None):
    """Start the copy of number ``i``, which begins at ``start``, as soon as there is room."""
    copy(ring, wait_empty(ring, i, smem.tile_bytes(ring.desc), w), start)


@gluon.jit
def load_pair(first, second, i, start, second_start, w=None):
    """Start the copies of number ``i`` of two rings with the same barriers, see `along`."""
    at = wait_empty(first, i, smem.tile_bytes(first.desc, second.desc), w)
    copy(first, at, start)
    copy(second, at, second_start)
