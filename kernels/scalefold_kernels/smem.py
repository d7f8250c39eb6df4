"""Shared memory of kernels for Hopper GPUs: tiles for TMA, operands of products, barriers.

A barrier's memory: the compiler reuses shared memory after the last operation on it, for a barrier
mostly its last wait. What is stored there next and the barrier, which nothing invalidates, then
spoil each other. So no barrier is made that nothing waits for. One that needs a single wait is
waited for again in each iteration of the loop, which returns at once; or it is allocated together
with barriers that are waited for to the end.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from scalefold_kernels.compiler import async_load, reinterpret

FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
"""Layout of numbers one after the other."""

SUMS = gl.constexpr(8)
"""Columns of the narrowest product; see `ones`."""


@gluon.constexpr_function
def _shape(number, desc):
    return [number, *desc.block_shape]


@gluon.jit
def tiles(desc, NUMBER: gl.constexpr):
    """Room for tiles of a tensor, as its descriptor says."""
    return gl.allocate_shared_memory(desc.dtype, _shape(NUMBER, desc), desc.layout)


@gluon.jit
def tile(desc):
    """Room for one tile of a tensor."""
    return gl.allocate_shared_memory(desc.dtype, desc.block_shape, desc.layout)


@gluon.jit
def matrices(NUMBER: gl.constexpr, M: gl.constexpr, N: gl.constexpr):
    """Room for operands of products, in bfloat16."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, N], gl.bfloat16)
    return gl.allocate_shared_memory(gl.bfloat16, [NUMBER, M, N], layout)


@gluon.jit
def ones():
    """Ones (1, 64, SUMS): a product with their matrix sums the left operand over 64 rows.

    All its columns are the same. An index opaque to the compiler needs the first dimension.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [4, 1], [1, 0])
    new = matrices(1, 64, SUMS)
    new.index(0).store(gl.full([64, SUMS], 1.0, gl.bfloat16, layout))
    return new


@gluon.jit
def numbers(dtype: gl.constexpr, NUMBER: gl.constexpr, SIZE: gl.constexpr):
    """Room for ``NUMBER`` vectors of ``SIZE`` numbers."""
    return gl.allocate_shared_memory(dtype, [NUMBER, SIZE], FLAT)


@gluon.jit
def barriers(NUMBER: gl.constexpr, ARRIVALS: gl.constexpr):
    """Barriers that wait for ``ARRIVALS`` each.

    Make only those that something waits for: see the module.
    """
    new = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(NUMBER):
        mbarrier.init(new.index(n), ARRIVALS)
    return new


@gluon.jit
def barrier():
    """A barrier that waits for one arrival."""
    return barriers(1, 1).index(0)


@gluon.constexpr_function
def tile_bytes(*descs):
    """Bytes of a tile of each of these tensors: what a barrier of all their copies expects."""
    return sum(desc.block_type.nbytes for desc in descs)


@gluon.jit
def as_described(memory, desc):
    """A tile in the shape in which TMA copies it, which may be another than that of products."""
    return reinterpret(memory, desc.dtype, desc.block_shape, desc.layout)


@gluon.jit
def load(desc, start, ready, memory):
    """Start the copy of a tile; the barrier ``ready`` is for it alone."""
    mbarrier.expect(ready, tile_bytes(desc))
    async_load(desc, start, ready, as_described(memory, desc))
