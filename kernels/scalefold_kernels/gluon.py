"""What all kernels for Hopper GPUs share; they are in Gluon, the level below Triton.

Most kernels that divide their warps have a record `Cta` of all that these share: tensors, shared
memory, barriers, sizes and constants. The kernel makes it as an argument, of `two_groups` or of a
function of its own: an assignment would make numbers in registers of the constants.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

ROWS = gl.constexpr(64)
"""Rows of a warp group's tile."""

REGISTERS = gl.constexpr(504)
"""Of three threads, one of each warp group and one of the loader, of which a CTA has 128."""


@gluon.constexpr_function
def mma_layout(columns):
    """Of a tile of 64 rows, as the four warps of a group hold what tensor cores give them."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16]
    )


@gluon.jit
def compute_as(w, cta, compute: gl.constexpr):
    """A warp group of `two_groups`."""
    compute(w, cta)


@gluon.jit
def load_as(cta, load: gl.constexpr):
    """The loader warp of `two_groups`."""
    load(cta)


@gluon.jit
def two_groups(cta, compute: gl.constexpr, load: gl.constexpr, first=0, second=1):
    """Divide a CTA: ``compute(w, cta)`` in two warp groups, ``load(cta)`` in a warp.

    ``first`` and ``second`` are their w: constants, or numbers in registers.
    """
    gl.warp_specialize(
        [
            (compute_as, (first, cta, compute)),
            (compute_as, (second, cta, compute)),
            (load_as, (cta, load)),
        ],
        [4, 1],
        [cta.GROUP_REGISTERS, REGISTERS - 2 * cta.GROUP_REGISTERS],
    )


@gluon.jit
def new_barriers(NUMBER: gl.constexpr, ARRIVALS: gl.constexpr):
    """In shared memory, each for so many arrivals; fenced before TMA sees them."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(NUMBER):
        mbarrier.init(barriers.index(n), ARRIVALS)
    return barriers


@gluon.jit
def wait_full(full, i):
    """Until number ``i`` of a ring is there; returns its place, of as many as ``full`` has."""
    PLACES: gl.constexpr = full.shape[0]
    place = i % PLACES
    mbarrier.wait(full.index(place), (i // PLACES) & 1)
    return place


@gluon.jit
def wait_empty(full, empty, i, BYTES: gl.constexpr):
    """Until there is room for number ``i`` of a ring; its place, and what to announce it on."""
    PLACES: gl.constexpr = full.shape[0]
    place = i % PLACES
    mbarrier.wait(empty.index(place), ((i // PLACES) & 1) ^ 1)
    ready = full.index(place)
    mbarrier.expect(ready, BYTES)
    return place, ready


@gluon.jit
def unsigned(x):
    """A number that is not negative, as one without a sign: divisions take half as much."""
    x = gl.to_tensor(x)
    if x.dtype == gl.int64:
        return x.to(gl.uint64)
    else:  # noqa: RET505 (of constants)
        return x.to(gl.uint32)


@gluon.jit
def opaque_zero(i, BITS: gl.constexpr = 28):
    """0 that the compiler does not know: the bits of ``i`` from ``BITS`` on, 0 <= i < 2^BITS.

    The compiler computes addresses that are the same in all iterations once, before the loop, and
    keeps them in registers throughout. Plus this zero of the loop's counter they are computed where
    they are used; that takes an instruction or two, but no register in between.
    """
    return i >> BITS


@gluon.jit
def product_int64(x, y):
    """Of numbers that are not negative, in 64 bits; signs would lie in registers over loops."""
    return unsigned(x).to(gl.uint64) * unsigned(y).to(gl.uint64)


@gluon.jit
def widen(x):
    """bfloat16 to float32, one instruction an element (the compiler's own takes two)."""
    return gl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=f,=f,r", [x], gl.float32, True, 2
    )


@gluon.jit
def columns(x, WIDTH: gl.constexpr):
    """A tile's columns by parts of so many."""
    if x.shape[1] > WIDTH:
        L: gl.constexpr = mma_layout(x.shape[1] // 2)
        left, right = gl.split(x.reshape([ROWS, 2, x.shape[1] // 2]).permute((0, 2, 1)))
        return columns(gl.convert_layout(left, L), WIDTH) + columns(
            gl.convert_layout(right, L), WIDTH
        )
    else:  # noqa: RET505 (of constants)
        return (x,)
