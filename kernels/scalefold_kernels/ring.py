"""Rings: slots in shared memory that a loader fills in turn, some ahead of the warp groups.

Number i has slot i % slots. Two barriers belong to a slot: ``full`` says that its tiles have
arrived, ``empty`` that all warp groups are done with them. Both complete once for each number of
the slot, so that the phase to wait for is the parity of i // slots.

``w``, where it is given, is one of two warp groups with slots of their own, which alternate.
"""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from scalefold_kernels import smem
from scalefold_kernels.compiler import async_load

Barriers = namedtuple("Barriers", "full empty")
"""A ring whose slots in shared memory are kept elsewhere."""

Ring = namedtuple("Ring", "desc slots full empty")
"""A ring of one tensor: how TMA reads it, slots in shared memory, barriers."""


@gluon.jit
def barriers(SLOTS: gl.constexpr, READERS: gl.constexpr):
    """Make the barriers of slots that ``READERS`` warp groups give back."""
    return Barriers(smem.barriers(SLOTS, 1), smem.barriers(SLOTS, READERS))


@gluon.jit
def of_slots(desc, slots, READERS: gl.constexpr):
    """Make a `Ring` of this shared memory, whose slots ``READERS`` warp groups give back.

    With 0 ``READERS`` tiles stay, see `fill`.
    """
    full = smem.barriers(slots.shape[0], 1)
    empty = full  # never waited for
    if READERS > 0:
        empty = smem.barriers(slots.shape[0], READERS)
    return Ring(desc, slots, full, empty)


@gluon.jit
def new(desc, SLOTS: gl.constexpr, READERS: gl.constexpr):
    """Make a `Ring` as `of_slots`, with new shared memory."""
    return of_slots(desc, smem.tiles(desc, SLOTS), READERS)


@gluon.jit
def along(ring, desc, SLOTS: gl.constexpr):
    """A `Ring` of another tensor with the barriers of this one: `load_pair` fills both."""
    return Ring(desc, smem.tiles(desc, SLOTS), ring.full, ring.empty)


@gluon.jit
def beside(ring, desc):
    """A `Ring` of another tensor, with tiles of the same size, in the same slots."""
    return Ring(desc, ring.slots, ring.full, ring.empty)


@gluon.jit
def slot(ring, i, w=None):
    """Slot of number ``i``."""
    SLOTS: gl.constexpr = ring.full.shape[0]
    if w is None:
        return i % SLOTS
    else:  # noqa: RET505 (of constants)
        return i % (SLOTS // 2) * 2 + w


@gluon.jit
def phase(ring, i, w=None):
    """Phase of the barrier ``full`` in which number ``i`` arrives; ``empty`` is one behind."""
    SLOTS: gl.constexpr = ring.full.shape[0] if w is None else ring.full.shape[0] // 2
    return (i // SLOTS) & 1


@gluon.jit
def wait_full(ring, i, w=None):
    """Wait until number ``i`` has arrived; returns its slot."""
    at = slot(ring, i, w)
    mbarrier.wait(ring.full.index(at), phase(ring, i, w))
    return at


@gluon.jit
def wait_empty(ring, i, BYTES: gl.constexpr, w=None):
    """Wait until there is room for number ``i``; returns its slot.

    The slot's barrier ``full`` then expects ``BYTES``.
    """
    at = slot(ring, i, w)
    mbarrier.wait(ring.empty.index(at), phase(ring, i, w) ^ 1)
    mbarrier.expect(ring.full.index(at), BYTES)
    return at


@gluon.jit
def copy(ring, at, start, wanted=True):
    """Start the copy to a slot if ``wanted``; the slot's barrier already expects its bytes."""
    tile = smem.as_described(ring.slots.index(at), ring.desc)
    async_load(ring.desc, start, ring.full.index(at), tile, pred=wanted)


@gluon.jit
def fill(ring, i, start):
    """Start the copy of number ``i``, which begins at ``start``, to a slot that is still empty."""
    at = slot(ring, i)
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
