"""What the attention kernels for Hopper GPUs share.

A CTA has 64 queries or keys of one head, for consecutive rows. Its tile of the bias stays in shared
memory for all of them; what it goes through in blocks comes in a ring. Layouts: ``LOGITS``, and
``OUT`` of sums over keys or queries (both as the tensor cores leave them), ``A`` and ``A_P`` of
their left operands in registers.
"""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_load, reinterpret
from scalefold_kernels.gluon import mma_layout, widen, zeros
from scalefold_kernels.ops.attention.triton.forward import LOG2E, MASKED_LOGIT

# BIAS_SCALE is the unit of logits, see `op.attention`. Without a bias, logits are plain products:
# their unit is the scale. Backward multiplies queries only with ``SCALE_Q``.

LOADER_REGISTERS = gl.constexpr(24)
"""Registers of a loader warp's thread; the warp group gets those that it gives up."""


@gluon.jit
def log2(x):
    """Logarithm of normal numbers, to 2^-22; the exact one takes thirty instructions."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def reciprocal(x):
    """1 / x to one unit in the last place; a true division takes eight instructions."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def row_max(x):
    """Maximum of each row in two chains, since the compiler keeps the order of a reduction."""
    M: gl.constexpr = x.shape[0]
    N: gl.constexpr = x.shape[1]
    rows: gl.constexpr = gl.SliceLayout(1, x.type.layout)
    even, odd = gl.split(gl.reshape(x, [M, N // 2, 2]))
    return gl.convert_layout(gl.max(gl.maximum(even, odd), 1), rows)


@gluon.jit
def lane_sums(x):
    """Sums (rows, 4) of what each of the four threads of a row holds."""
    M: gl.constexpr = x.shape[0]
    N: gl.constexpr = x.shape[1]
    even, odd = gl.split(gl.reshape(x, [M, N // 8, 4, 2]))
    return gl.sum(even + odd, 1)


@gluon.jit
def place_of_cta(num_positions, num_heads, num_rows, BLOCK: gl.constexpr = 64):
    """First position, head, group of rows, first row and number of rows of a CTA.

    CTAs that share positions and head have a group of rows each; some heads have one more CTA.
    """
    num_blocks = gl.cdiv(num_positions, BLOCK)
    tiles = num_blocks * num_heads
    tile = gl.program_id(0) % tiles
    group = gl.program_id(0) // tiles
    num_groups = gl.cdiv(gl.num_programs(0) - tile, tiles)
    first_row = group * num_rows // num_groups
    rows = (group + 1) * num_rows // num_groups - first_row
    return tile % num_blocks * BLOCK, tile // num_blocks, group, first_row, rows


@gluon.jit
def copy_bias(bias_desc, tile, ready, batch, head, query, key, TRANSPOSED: gl.constexpr):
    """Start the copy of a tile of the bias from ``query`` and ``key`` on."""
    if TRANSPOSED:
        async_load(bias_desc, [batch, head, key, query], ready, tile)
    else:
        async_load(bias_desc, [batch, head, query, key], ready, tile)


@gluon.jit
def load_bias(tile, N: gl.constexpr, HAS_BIAS: gl.constexpr, TRANSPOSED: gl.constexpr):
    """Initial accumulator of (64, N) logits: a tile of the bias in float32, or zeros.

    ``TRANSPOSED``: its dimensions are not in memory's order.
    """
    if not HAS_BIAS:
        return zeros(64, N)
    flat = tile.reshape([tile.shape[2], tile.shape[3]])
    if TRANSPOSED:
        flat = flat.permute((1, 0))
    return widen(flat.load(mma_layout(N)))


@gluon.jit
def sum_places(queries, keys, num_queries, num_keys, TRANSPOSED: gl.constexpr):
    """Offsets of elements (queries, keys) of the bias's gradient, in the bias's memory order."""
    at = queries[:, None].to(gl.int64) * num_keys + keys[None, :]
    if TRANSPOSED:
        at = keys[None, :].to(gl.int64) * num_queries + queries[:, None]
    return at


Mask = namedtuple("Mask", "start stride_r stride_k num_keys")
"""Where the mask of a sample begins, strides of its rows and keys, number of keys."""


@gluon.jit
def mask_of(mask_ptr, batch, strides, num_keys):
    """The `Mask` of a sample."""
    stride_b, stride_r, stride_k = strides
    start = mask_ptr + batch.to(gl.int64) * stride_b
    return Mask(start, gl.to_tensor(stride_r), gl.to_tensor(stride_k), gl.to_tensor(num_keys))


@gluon.jit
def load_mask(mask, row, KEYS: gl.constexpr):
    """A row of a `Mask`; every warp holds all of it."""
    layout: gl.constexpr = gl.BlockedLayout([KEYS // 32], [32], [gl.num_warps()], [0])
    keys = gl.arange(0, KEYS, layout=layout)
    start = mask.start + row.to(gl.int64) * mask.stride_r
    return gl.load(start + keys * mask.stride_k, mask=keys < mask.num_keys, other=0.0)


@gluon.jit
def count(row_mask):
    """How many keys of a row are unmasked."""
    return gl.sum((row_mask != 0).to(gl.int32), 0)


@gluon.jit
def count_unmasked(mask, row):
    """How many keys of a row are unmasked; a loader warp has registers for 256 at a time."""
    PART: gl.constexpr = 256
    unmasked = 0
    for first in range(0, mask.num_keys, PART):
        start, num_keys = mask.start + first * mask.stride_k, mask.num_keys - first
        unmasked += count(load_mask(Mask(start, mask.stride_r, mask.stride_k, num_keys), row, PART))
    return unmasked


@gluon.jit
def announce(number, memory, ready):
    """Store a number in shared memory and arrive at the barrier ``ready``."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    memory.store(gl.full([1], 0, gl.int32, one) + number)
    mbarrier.arrive(ready)


@gluon.jit
def announced(memory):
    """Number that `announce` stored."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.sum(memory.load(one), 0)


BY_THREAD = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [5, 4, 3, 2, 1, 0]))
"""Shared-memory layout of tiles from `by_thread`, free of bank conflicts."""


@gluon.jit
def by_thread(x):
    """Rearrange a product's tile so that a thread's four numbers of two rows are contiguous.

    (64, N) becomes (k, w, r, q, h, e), as drawn in `docs/kernels.md`.
    """
    N: gl.constexpr = x.shape[1]
    return gl.permute(gl.reshape(x, [4, 2, 8, N // 8, 4, 2]), (3, 0, 2, 4, 1, 5))


@gluon.jit
def by_position(x, layout: gl.constexpr):
    """Inverse of `by_thread`."""
    N: gl.constexpr = x.shape[0]
    tile = gl.reshape(gl.permute(x, (1, 4, 2, 0, 3, 5)), [64, N * 8])
    return gl.convert_layout(tile, layout, assert_trivial=True)


@gluon.jit
def in_line(x):
    """Flatten a product's tile in the order of `by_thread`."""
    return gl.reshape(by_thread(x), [x.shape[0] * x.shape[1]])


@gluon.jit
def waiting_at(waiting_ptr, batch, row, head, first_q, sizes, layout: gl.constexpr):
    """Addresses of 64 queries' gradients that wait for more keys, in the order of `in_line`.

    ``waiting`` (B, R, H, blocks of queries, 64 C) is float32. In this order a warp reads and writes
    512 contiguous bytes; by position it would be eight pieces of 32 bytes, each a request to the
    cache.
    """
    num_rows, num_heads, num_queries = sizes
    C: gl.constexpr = layout.instr_shape[1]
    LINE: gl.constexpr = in_line(gl.full([64, C], 0.0, gl.float32, layout)).type.layout
    block = ((batch * num_rows + row).to(gl.int64) * num_heads + head) * gl.cdiv(num_queries, 64)
    start = waiting_ptr + (block + first_q // 64) * (64 * C)
    return start + gl.arange(0, 64 * C, layout=LINE)


@gluon.jit
def store_mask(row_mask, num_keys, unmasked, mask_smem):
    """Store what is added to the logits of each key; if all are masked, all get equal weights.

    ``row_mask`` is from `load_mask`; ``mask_smem`` has as many elements, in blocks of keys.
    """
    KEYS: gl.constexpr = row_mask.shape[0]
    keys = gl.arange(0, KEYS, layout=row_mask.type.layout)
    added = gl.where((row_mask != 0) | (unmasked == 0), 0.0, MASKED_LOGIT)
    added = gl.where(keys < num_keys, added, float("-inf"))
    reinterpret(mask_smem, mask_smem.dtype, [KEYS], smem.FLAT).store(added.to(mask_smem.dtype))


@gluon.jit
def block_slot(blocks, i, j, NUM_BLOCKS: gl.constexpr):
    """Slot of block ``j`` of the ``i``-th row in a ring, and how often it was filled before.

    Slots divide NUM_BLOCKS (`launches.in_blocks`): a block has the same one in every row.
    """
    SLOTS: gl.constexpr = blocks.full.shape[0]
    return j % SLOTS, i * (NUM_BLOCKS // SLOTS) + j // SLOTS


@gluon.jit
def wait_block(blocks, i, j, NUM_BLOCKS: gl.constexpr):
    """Wait until block ``j`` of the ``i``-th row has come; returns its slot."""
    slot, used = block_slot(blocks, i, j, NUM_BLOCKS)
    mbarrier.wait(blocks.full.index(slot), used & 1)
    return slot


@gluon.jit
def wait_room(blocks, i, j, NUM_BLOCKS: gl.constexpr):
    """Wait until there is room for block ``j`` of the ``i``-th row; returns its slot."""
    slot, used = block_slot(blocks, i, j, NUM_BLOCKS)
    mbarrier.wait(blocks.empty.index(slot), (used & 1) ^ 1)
    return slot


@gluon.jit
def load_keys(k, v, slot, batch, row, first_key, head, wanted=True):
    """Start the copies of a block of keys and values to a slot of their ring if ``wanted``."""
    at = [batch, row, first_key, head, 0]
    mbarrier.expect(k.full.index(slot), smem.tile_bytes(k.desc, v.desc), pred=wanted)
    ring.copy(k, slot, at, wanted)
    ring.copy(v, slot, at, wanted)


@gluon.jit
def undo_gate(grad_tile, out, gate_tile, HAS_GATE: gl.constexpr, VECTORS: gl.constexpr):
    """Overwrite gate and gradient by the gradients of gate and ungated result; return delta.

    Tiles (queries, channels) of a head; ``out`` in float32. See `triton.backward` for delta.
    """
    grad = widen(grad_tile.load(VECTORS))
    product = grad * out
    if HAS_GATE:
        # At most 2^126, so that the reciprocal is a normal number.
        inverse = gl.minimum(1.0 + gl.exp2(-LOG2E * widen(gate_tile.load(VECTORS))), 2.0**126)
        share = reciprocal(inverse)
        gate_tile.store((product * (1.0 - share)).to(gate_tile.dtype))
        grad_o = (grad * share).to(grad_tile.dtype)
        grad_tile.store(grad_o)
        product = widen(grad_o) * inverse * out
    return gl.sum(product, 1)
