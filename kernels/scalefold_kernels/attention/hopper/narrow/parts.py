"""What the kernel of keys with heads of 8 channels consists of.

8 channels are half of what a product of a whole warp group takes, so that each warp works by itself
here (`mma.sync`): it has 16 keys of one head and goes through all of a row's queries, without a
branch, so that the compiler has several blocks of them under way. Its tile of the bias stays in
shared memory for all rows of the program; what a row brings comes there while the row before is
computed.

Logits are handled as `quarters`, of which a thread has one element a block of 8 columns, and
operands of products as words of two channels, of which it has one a row of 8 (or a column).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from scalefold_kernels.gluon import thread_barrier, widen

CHANNELS = gl.constexpr(8)
LINES = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 1, [1, 0]))
"""Shared memory of positions, 16 bytes each."""

WORDS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
"""The same, as words (blocks of 8 positions, 8, 4)."""

TILE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [6, 5, 4, 3, 2, 1, 0]))
"""Shared memory of a block of the bias, see `by_thread`."""


@gluon.constexpr_function
def tile_layout(warps):
    """Of 16 rows a warp, as tensor cores leave them."""
    return gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[warps, 1], instr_shape=[16, 8])


@gluon.jit
def quarters(x):
    """Upper left, upper right, lower left and lower right of what each thread has of a tile.

    Each (warps, 8 rows, blocks of 8 columns, 4 pairs of columns).
    """
    M: gl.constexpr = x.shape[0]
    N: gl.constexpr = x.shape[1]
    apart = gl.permute(gl.reshape(x, [M // 16, 2, 8, N // 8, 4, 2]), (0, 2, 3, 4, 1, 5))
    left, right = gl.split(apart)
    upper_left, lower_left = gl.split(left)
    upper_right, lower_right = gl.split(right)
    return upper_left, upper_right, lower_left, lower_right


@gluon.jit
def whole(c0, c1, c2, c3, M: gl.constexpr, N: gl.constexpr, layout: gl.constexpr):
    """Inverse of `quarters`."""
    apart = gl.join(gl.join(c0, c2), gl.join(c1, c3))
    tile = gl.reshape(gl.permute(apart, (0, 4, 1, 2, 3, 5)), [M, N])
    return gl.convert_layout(tile, layout, assert_trivial=True)


@gluon.jit
def by_thread(x):
    """A tile such that what a thread has of 16 columns is contiguous."""
    M: gl.constexpr = x.shape[0]
    N: gl.constexpr = x.shape[1]
    apart = gl.reshape(x, [M // 16, 2, 8, N // 16, 2, 4, 2])
    return gl.permute(apart, (3, 0, 2, 5, 4, 1, 6))


@gluon.jit
def store_bias(
    bias, tiles, first, step, other_step, number, others,
    M: gl.constexpr, BLOCK: gl.constexpr, BLOCKS: gl.constexpr, BEYOND: gl.constexpr,
):  # fmt: skip
    """The program's tile of the bias, block by block; ``BEYOND`` its ends."""
    S: gl.constexpr = tile_layout(M // 16)
    own = first + gl.arange(0, M, layout=gl.SliceLayout(1, S))
    for n in range(BLOCKS):
        other = n * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, S))
        inside = (own < number)[:, None] & (other < others)[None, :]
        places = bias + (own[:, None] * step + other[None, :] * other_step)
        tiles.index(n).store(by_thread(gl.load(places, mask=inside, other=BEYOND)))
    thread_barrier()


@gluon.jit
def load_bias(tile, M: gl.constexpr, BLOCK: gl.constexpr):
    """A block of the bias as `quarters` in float32."""
    S: gl.constexpr = tile_layout(M // 16)
    like = by_thread(gl.full([M, BLOCK], 0.0, gl.bfloat16, S))
    x = gl.permute(tile.load(like.type.layout), (1, 5, 2, 0, 4, 3, 6))
    x = gl.convert_layout(gl.reshape(x, [M, BLOCK]), S, assert_trivial=True)
    return quarters(widen(x))


@gluon.jit
def pack(low, high):
    """Two float32 to the bfloat16 of a word."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], gl.int32, True, 1
    )


@gluon.jit
def product(a_upper, a_lower, b, c0, c1, c2, c3):
    """`quarters` plus the product of rows a (words of the upper and lower 8) and columns b."""
    return gl.inline_asm_elementwise(
        """mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32
        {$0, $1, $2, $3}, {$4, $5}, {$6}, {$7, $8, $9, $10};""",
        "=f,=f,=f,=f,r,r,r,f,f,f,f", [a_upper, a_lower, b, c0, c1, c2, c3],
        (gl.float32, gl.float32, gl.float32, gl.float32), True, 1,
    )  # fmt: skip


@gluon.jit
def product_and_pad(a_upper, a_lower, a_pad, b, b_pad, c0, c1, c2, c3):
    """As `product`, with 8 more channels; those of a are the same in all rows."""
    return gl.inline_asm_elementwise(
        """mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
        {$0, $1, $2, $3}, {$4, $5, $6, $6}, {$7, $8}, {$9, $10, $11, $12};""",
        "=f,=f,=f,=f,r,r,r,r,r,f,f,f,f", [a_upper, a_lower, a_pad, b, b_pad, c0, c1, c2, c3],
        (gl.float32, gl.float32, gl.float32, gl.float32), True, 1,
    )  # fmt: skip


@gluon.jit
def load_columns(words, first: gl.constexpr, like):
    """Words (blocks of positions, 8, 4) of some columns; ``like`` one of the `quarters`."""
    BLOCKS: gl.constexpr = like.shape[2]
    layout: gl.constexpr = gl.SliceLayout(0, like.type.layout)
    block = words.slice(first, BLOCKS, dim=0).permute((1, 0, 2))
    return gl.expand_dims(block.load(layout), 0)


@gluon.jit
def load_padded_columns(words, first: gl.constexpr, like):
    """The same of memory (2, blocks of positions, 8, 4), of which the second half is the pad."""
    BLOCKS: gl.constexpr = like.shape[2]
    pair = gl.join(like, like)
    layout: gl.constexpr = gl.SliceLayout(0, pair.type.layout)
    block = words.slice(first, BLOCKS, dim=1).permute((2, 1, 3, 0))
    return gl.split(gl.expand_dims(block.load(layout), 0))


@gluon.jit
def word_places(like):
    """Row of each word, of the upper 8 of each warp's, and its place in it; see `pad_words`."""
    ROWS: gl.constexpr = gl.SliceLayout(2, like.type.layout)
    warp = gl.arange(0, like.shape[0], layout=gl.SliceLayout(1, gl.SliceLayout(2, ROWS)))
    lane = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, ROWS)))
    word = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, ROWS)))
    return (16 * warp[:, None] + lane[None, :])[:, :, None], word[None, :][:, None, :]


@gluon.jit
def pad_words(like, first: gl.constexpr, second: gl.constexpr):
    """Words of a pad that all rows share; beyond the first two they are 0."""
    _, word = word_places(like)
    chosen = gl.where(word == 0, first, gl.where(word == 1, second, 0))
    return chosen[:, :, None, :] + gl.zeros_like(like).to(gl.int32)


@gluon.jit
def result_words(x, like):
    """A result (rows, 8) as words of the upper and lower 8 rows of each warp."""
    W: gl.constexpr = like.shape[0]
    ROWS: gl.constexpr = gl.SliceLayout(2, like.type.layout)
    c0, c1, c2, c3 = quarters(x)
    upper, lower = gl.reshape(pack(c0, c1), [W, 8, 4]), gl.reshape(pack(c2, c3), [W, 8, 4])
    upper = gl.convert_layout(upper, ROWS, assert_trivial=True)
    return upper, gl.convert_layout(lower, ROWS, assert_trivial=True)


@gluon.jit
def words_of(ptr):
    """A pointer to bfloat16 as one to words."""
    return ptr.to(gl.pointer_type(gl.int32), bitcast=True)


@gluon.jit
def store_words(ptr, places, step, upper, lower, upper_in, lower_in):
    """Words of 16 rows, ``step`` bfloat16 from one to the next."""
    gl.store(ptr + places, upper, mask=upper_in)
    gl.store(ptr + places + 4 * step, lower, mask=lower_in)


@gluon.jit
def copy_positions(ptr, places, inside, to):
    """Start the copy of a row's positions; zeros where they are not inside."""
    async_copy.async_copy_global_to_shared(to, ptr + places, mask=inside)
