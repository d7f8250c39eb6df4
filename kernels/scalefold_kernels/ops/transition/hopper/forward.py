"""Forward of the transition on Hopper GPUs; see `parts`.

The loader brings 64 rows for each of two warp groups, and blocks of both weights, which the groups
share, in three rings. A group normalises its rows in place and walks along the hidden channels: the
``down`` product of a block and the ``up`` product of the next are on their way together, while the
other group applies bias and ReLU (``turns``). The result takes the rows' place and leaves by TMA.
"""

from collections import namedtuple

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_store, mma, mma_wait
from scalefold_kernels.gluon import ROWS, mma_layout, two_groups, widen, zeros
from scalefold_kernels.loads import load_vector
from scalefold_kernels.ops.norm.triton import EPS
from scalefold_kernels.ops.transition.hopper.parts import load_bias, relu, width_of
from scalefold_kernels.ops.transition.op import Kept, Parameters, config_of
from scalefold_kernels.tma import num_ctas, tiles_of

Cta = namedtuple(
    "Cta",
    "norm_weight_ptr norm_bias_ptr up_bias_ptr down_bias_ptr out_desc normed_desc stats_ptr x up "
    "down turns num_rows num_tiles C H BLOCK_C BLOCK_H KEEP",
)


@gluon.jit
def load(cta):
    i = gl.to_tensor(0)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), cta.num_tiles, gl.num_programs(0)):
        for w in gl.static_range(2):
            ring.load(cta.x, n, [(2 * tile + w) * ROWS, 0])
            n += 1
        for h in range(0, cta.H, cta.BLOCK_H):
            ring.load(cta.up, i, [h, 0])
            ring.load(cta.down, i, [0, h])
            i += 1


@gluon.constexpr_function
def part_width(columns):
    """Channels that are normalised at a time; wide rows are split to save registers."""
    return columns if columns < 256 else 64


@gluon.jit
def normalise(tile, cta):
    """Normalise a tile's rows in place; returns their mean and 1 / standard deviation.

    The tile is 0 beyond C.
    """
    C: gl.constexpr = cta.C
    WIDTH: gl.constexpr = part_width(cta.BLOCK_C)
    NUMBER: gl.constexpr = cta.BLOCK_C // WIDTH
    L: gl.constexpr = mma_layout(WIDTH)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, L))
    pieces = ()
    for part in gl.static_range(NUMBER):
        pieces += (tile.slice(part * WIDTH, WIDTH, dim=1),)
    total = zeros(ROWS, WIDTH)
    for part in gl.static_range(NUMBER):
        total += widen(pieces[part].load(L))
    mean = gl.sum(total, 1) * (1.0 / C)
    total = zeros(ROWS, WIDTH)
    for part in gl.static_range(NUMBER):
        centred = widen(pieces[part].load(L)) - mean[:, None]
        if C < cta.BLOCK_C:
            centred = gl.where((part * WIDTH + column < C)[None, :], centred, 0.0)
        total += centred * centred
    rstd = gl.rsqrt(gl.sum(total, 1) * (1.0 / C) + EPS)
    for part in gl.static_range(NUMBER):
        c = part * WIDTH + column
        piece = pieces[part]
        x_hat = (widen(piece.load(L)) - mean[:, None]) * rstd[:, None]
        # Both are 0 beyond C.
        norm_weight = load_vector(cta.norm_weight_ptr, c, C)
        norm_bias = load_vector(cta.norm_bias_ptr, c, C)
        piece.store((x_hat * norm_weight[None, :] + norm_bias[None, :]).to(tile.dtype))
    return mean, rstd


@gluon.jit
def compute(w: gl.constexpr, cta):
    HIDDEN: gl.constexpr = mma_layout(cta.BLOCK_H)
    OUT: gl.constexpr = mma_layout(cta.BLOCK_C)
    A: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, mma_layout(part_width(cta.BLOCK_C)))
    dtype: gl.constexpr = cta.x.desc.dtype
    last: gl.constexpr = (cta.H - 1) // cta.BLOCK_H * cta.BLOCK_H
    c = gl.arange(0, cta.BLOCK_C, layout=gl.SliceLayout(0, OUT))
    h = gl.arange(0, cta.BLOCK_H, layout=gl.SliceLayout(0, HIDDEN))
    zero = zeros(ROWS, cta.BLOCK_H)
    i = gl.to_tensor(0)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), cta.num_tiles, gl.num_programs(0)):
        row = (2 * tile + w) * ROWS
        number = 2 * n + w
        x_tile = cta.x.slots.index(ring.wait_full(cta.x, number))
        x = x_tile.load(OUT)
        if n > 0:
            # Wait until this group's previous result, two numbers ago, has left.
            tma.store_wait(0)
            mbarrier.arrive(cta.x.empty.index(ring.slot(cta.x, number - 2)))
        mean, rstd = normalise(x_tile, cta)
        fence_async_shared()
        if cta.KEEP:
            async_store(cta.normed_desc, [row, 0], x_tile)
            r = row + gl.arange(0, ROWS, layout=ROW)
            gl.store(cta.stats_ptr + r, mean, mask=r < cta.num_rows)
            gl.store(cta.stats_ptr + cta.num_rows + r, rstd, mask=r < cta.num_rows)
        out = widen(x)
        slot = ring.wait_full(cta.up, i)
        hidden = mma(x_tile, cta.up.slots.index(slot).permute((1, 0)), zero, use_acc=False)
        mbarrier.arrive(cta.up.empty.index(slot))
        bias = load_bias(cta.up_bias_ptr, 0, h, cta.H, cta.BLOCK_H)
        for first in range(cta.BLOCK_H, last + cta.BLOCK_H, cta.BLOCK_H):
            left = gl.convert_layout(relu(hidden + bias.to(gl.float32)[None, :]), A)
            # The groups take turns with the tensor cores, group 0 first.
            mbarrier.wait(cta.turns.index(w), ((i - n) & 1) ^ (1 - w))
            mbarrier.wait(cta.down.full.index(slot), ring.phase(cta.down, i))
            down = cta.down.slots.index(slot).permute((1, 0))
            out = mma(left, down, out, is_async=True)
            i += 1
            following = ring.wait_full(cta.up, i)
            up = cta.up.slots.index(following).permute((1, 0))
            hidden = mma(x_tile, up, zero, use_acc=False, is_async=True)
            mbarrier.arrive(cta.turns.index(1 - w))
            bias = load_bias(cta.up_bias_ptr, first, h, cta.H, cta.BLOCK_H)
            # Within the iteration: across iterations, ptxas (12.8) would wait after each step.
            out, hidden = mma_wait(0, [out, hidden])
            mbarrier.arrive(cta.down.empty.index(slot))
            mbarrier.arrive(cta.up.empty.index(following))
            slot = following
        left = gl.convert_layout(relu(hidden + bias.to(gl.float32)[None, :]), A)
        mbarrier.wait(cta.down.full.index(slot), ring.phase(cta.down, i))
        out = mma(left, cta.down.slots.index(slot).permute((1, 0)), out)
        mbarrier.arrive(cta.down.empty.index(slot))
        i += 1
        out_bias = load_vector(cta.down_bias_ptr, c, cta.C)
        if cta.KEEP:
            # The normalised rows have left: the result takes their place.
            tma.store_wait(0)
        x_tile.store((out + out_bias[None, :]).to(dtype))
        fence_async_shared()
        async_store(cta.out_desc, [row, 0], x_tile)
        n += 1
    tma.store_wait(0)


@gluon.jit
def transition_forward_hopper_kernel(
    x_desc, up_desc, down_desc, out_desc, normed_desc, norm_weight_ptr, norm_bias_ptr, up_bias_ptr,
    down_bias_ptr, stats_ptr, num_rows, num_tiles, C: gl.constexpr, H: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_H: gl.constexpr, STAGES: gl.constexpr, X_SLOTS: gl.constexpr,
    GROUP_REGISTERS: gl.constexpr, KEEP: gl.constexpr,
):  # fmt: skip
    """``x + down(relu(up(norm(x))))``; hidden channels never leave the chip. See `parts`.

    With ``KEEP``, the normalised rows and ``stats`` (2, R), their mean and 1 / standard deviation,
    are written for backward, too.
    """
    x = ring.new(x_desc, X_SLOTS, 1)
    up, down = ring.new(up_desc, STAGES, 2), ring.new(down_desc, STAGES, 2)
    turns = x.full  # unused when a tile has one block of hidden channels
    if H > BLOCK_H:
        turns = smem.barriers(2, 1)
    two_groups(Cta(
        norm_weight_ptr, norm_bias_ptr, up_bias_ptr, down_bias_ptr, out_desc, normed_desc,
        stats_ptr, x, up, down, turns, gl.to_tensor(num_rows), gl.to_tensor(num_tiles),
        C, H, BLOCK_C, BLOCK_H, KEEP,
    ), compute, load, GROUP_REGISTERS)  # fmt: skip


def forward(x_RC: Tensor, parameters: Parameters, out_RC: Tensor, kept: Kept | None) -> None:
    norm_weight, norm_bias, up, up_bias, down, down_bias = parameters
    num_rows, channels = x_RC.shape
    num_hidden = len(up)
    config = config_of("transition_forward_hopper", x_RC, num_hidden, "sm_90")
    width, block = width_of(channels), config["BLOCK_H"]
    num_tiles = triton.cdiv(num_rows, 2 * ROWS.value)
    # Unused when KEEP is false; TMA descriptors may not be None.
    normed, stats = kept or (out_RC, up_bias)
    transition_forward_hopper_kernel[(num_ctas(num_tiles, x_RC.device),)](
        tiles_of(x_RC, ROWS.value, width), tiles_of(up, block, width), tiles_of(down, width, block),
        tiles_of(out_RC, ROWS.value, width), tiles_of(normed, ROWS.value, width), norm_weight,
        norm_bias, up_bias, down_bias, stats, num_rows, num_tiles,
        C=channels, H=num_hidden, BLOCK_C=width, KEEP=kept is not None, **config,
    )  # fmt: skip
