"""Backward of the transition on Hopper GPUs, all but the weights' gradients; see `parts`.

Hidden channels are made again and written with their gradient, for the two products that give the
weights' gradients. Their third use, the gradient of the normalised rows, stays on the chip, and
LayerNorm's backward and the residual's gradient follow there. Normalised rows are written before
the norm's weight and bias, so that ``raw = grad_hidden^T x_hat`` gives three gradients: of ``up``,
of the norm's weight (``sum_h up raw``), and, with the sums over rows, of its bias.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from scalefold_kernels.hopper import mma_layout, widen
from scalefold_kernels.transition.hopper.parts import (
    REGISTERS,
    ROWS,
    load_bias,
    load_weights,
    normalise,
    part_width,
    relu,
    relu_backward,
)


@gluon.jit
def load(
    args,
    C: gl.constexpr, H: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_H: gl.constexpr,
    UP_STAGES: gl.constexpr, DOWN_STAGES: gl.constexpr,
):  # fmt: skip
    """The loader warp."""
    (
        x_desc, grad_desc, up_desc, down_desc, x_smem, grad_smem, up_smem, down_smem,
        rows_full, rows_empty, up_full, up_empty, down_full, down_empty, num_tiles,
    ) = args  # fmt: skip
    i = gl.to_tensor(0)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        for w in gl.static_range(2):
            at = [(2 * tile + w) * ROWS, 0]
            mbarrier.wait(rows_empty.index(w), (n & 1) ^ 1)
            mbarrier.expect(rows_full.index(w), 2 * ROWS * BLOCK_C * 2)
            tma.async_copy_global_to_shared(x_desc, at, rows_full.index(w), x_smem.index(w))
            tma.async_copy_global_to_shared(grad_desc, at, rows_full.index(w), grad_smem.index(w))
        n += 1
        i = load_weights(
            up_desc, down_desc, up_smem, down_smem, up_full, up_empty, down_full, down_empty, i,
            C, H, BLOCK_C, BLOCK_H, UP_STAGES, DOWN_STAGES,
        )  # fmt: skip


@gluon.jit
def sum_rows(tile, COLUMNS: gl.constexpr):
    """Start the sum of a tile over its rows, in each row of the result: a product with ones.

    Shuffles between threads and warps take longer than these idle tensor cores.
    """
    L: gl.constexpr = mma_layout(COLUMNS)
    ones = gl.full([ROWS, ROWS], 1.0, tile.dtype, gl.DotOperandLayout(0, L, 2))
    zero = gl.full([ROWS, COLUMNS], 0.0, gl.float32, L)
    return warpgroup_mma(ones, tile, zero, use_acc=False, is_async=True)


@gluon.jit
def write_first_row(x, out, N: gl.constexpr):
    """The first N elements of a tile's first row, to memory."""
    L: gl.constexpr = x.type.layout
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))[:, None]
    column = gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, L))[None, :]
    gl.store(out + column + row, x, mask=(row == 0) & (column < N))


@gluon.jit
def write(hidden, grad_hidden, hidden_tile, grad_tile, hidden_desc, grad_desc, row, first):
    """Start copying both away, once the copies before have left shared memory."""
    tma.store_wait(0)
    hidden_tile.store(hidden)
    grad_tile.store(grad_hidden)
    fence_async_shared()
    tma.async_copy_shared_to_global(hidden_desc, [row, first], hidden_tile)
    tma.async_copy_shared_to_global(grad_desc, [row, first], grad_tile)


@gluon.jit
def halves(x):
    """Left and right columns."""
    L: gl.constexpr = mma_layout(x.shape[1] // 2)
    left, right = gl.split(x.reshape([ROWS, 2, x.shape[1] // 2]).permute((0, 2, 1)))
    return gl.convert_layout(left, L), gl.convert_layout(right, L)


@gluon.jit
def parts(x, WIDTH: gl.constexpr):
    """Columns by parts."""
    if x.shape[1] > WIDTH:
        left, right = halves(x)
        return parts(left, WIDTH) + parts(right, WIDTH)
    else:
        return (x,)


@gluon.jit
def normalise_backward(
    grad_normed, x_tile, grad_tile, norm_weight, mean, rstd,
    C: gl.constexpr, BLOCK_C: gl.constexpr,
):  # fmt: skip
    """LayerNorm's gradient, added to the residual's in its tile; ``x_hat`` in the place of x."""
    WIDTH: gl.constexpr = part_width(BLOCK_C)
    L: gl.constexpr = mma_layout(WIDTH)
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, L))
    grads = parts(grad_normed, WIDTH)
    scaled = ()
    mean_grad = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, L))
    mean_product = mean_grad
    for part in gl.static_range(BLOCK_C // WIDTH):
        c = part * WIDTH + column
        scale = gl.load(norm_weight + c, mask=c < C, other=0.0).to(gl.float32)
        grad = grads[part] * scale[None, :]
        piece = x_tile.slice(part * WIDTH, WIDTH, dim=1)
        x_hat = (widen(piece.load(L)) - mean[:, None]) * rstd[:, None]
        piece.store(x_hat.to(x_tile.dtype))
        mean_grad += gl.sum(grad, 1) * (1.0 / C)
        mean_product += gl.sum(grad * x_hat, 1) * (1.0 / C)
        scaled = scaled + (grad,)
    for part in gl.static_range(BLOCK_C // WIDTH):
        x_hat = widen(x_tile.slice(part * WIDTH, WIDTH, dim=1).load(L))
        piece = grad_tile.slice(part * WIDTH, WIDTH, dim=1)
        grad = scaled[part] - mean_grad[:, None] - x_hat * mean_product[:, None]
        piece.store((grad * rstd[:, None] + widen(piece.load(L))).to(grad_tile.dtype))


@gluon.jit
def compute(
    w: gl.constexpr, args,
    C: gl.constexpr, H: gl.constexpr, EPS: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_H: gl.constexpr,
    UP_STAGES: gl.constexpr, DOWN_STAGES: gl.constexpr,
):  # fmt: skip
    """Warp group ``w``."""
    (
        norm_weight, norm_bias, up_bias, sums,
        x_desc, hidden_desc, grad_hidden_desc, x_hat_desc, grad_x_desc,
        x_smem, grad_smem, up_smem, down_smem, out_smem,
        rows_full, rows_empty, x_again, up_full, up_empty, down_full, down_empty, num_tiles,
    ) = args  # fmt: skip
    HIDDEN: gl.constexpr = mma_layout(BLOCK_H)
    OUT: gl.constexpr = mma_layout(BLOCK_C)
    A: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    last: gl.constexpr = (H - 1) // BLOCK_H * BLOCK_H
    h = gl.arange(0, BLOCK_H, layout=gl.SliceLayout(0, HIDDEN))
    zero = gl.full([ROWS, BLOCK_H], 0.0, gl.float32, HIDDEN)
    x_tile, grad_tile = x_smem.index(w), grad_smem.index(w)
    hidden_tile, grad_hidden_tile = out_smem.index(2 * w), out_smem.index(2 * w + 1)
    i = gl.to_tensor(0)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        row = (2 * tile + w) * ROWS
        tile_sums = sums + (2 * tile + w).to(gl.int64) * (H + C)
        mbarrier.wait(rows_full.index(w), n & 1)
        grad_sums = warpgroup_mma_wait(0, [sum_rows(grad_tile, BLOCK_C)])
        write_first_row(grad_sums, tile_sums + H, C)
        mean, rstd = normalise(x_tile, norm_weight, norm_bias, C, BLOCK_C, EPS)
        fence_async_shared()
        grad_normed = gl.full([ROWS, BLOCK_C], 0.0, gl.float32, OUT)
        slot = i % UP_STAGES
        mbarrier.wait(up_full.index(slot), (i // UP_STAGES) & 1)
        up = up_smem.index(slot).permute((1, 0))
        hidden = warpgroup_mma(x_tile, up, zero, use_acc=False, is_async=True)
        down_slot = i % DOWN_STAGES
        mbarrier.wait(down_full.index(down_slot), (i // DOWN_STAGES) & 1)
        down = down_smem.index(down_slot)
        grad_hidden = warpgroup_mma(grad_tile, down, zero, use_acc=False, is_async=True)
        bias = load_bias(up_bias, 0, h, H, BLOCK_H)
        hidden, grad_hidden = warpgroup_mma_wait(0, [hidden, grad_hidden])
        mbarrier.arrive(down_empty.index(down_slot))
        for first in range(0, last, BLOCK_H):
            hidden16 = relu(hidden + bias.to(gl.float32)[None, :])
            grad16 = relu_backward(grad_hidden, hidden16)
            left = gl.convert_layout(grad16, A)
            grad_normed = warpgroup_mma(left, up_smem.index(slot), grad_normed, is_async=True)
            i += 1
            following = i % UP_STAGES
            mbarrier.wait(up_full.index(following), (i // UP_STAGES) & 1)
            up = up_smem.index(following).permute((1, 0))
            hidden = warpgroup_mma(x_tile, up, zero, use_acc=False, is_async=True)
            down_slot = i % DOWN_STAGES
            mbarrier.wait(down_full.index(down_slot), (i // DOWN_STAGES) & 1)
            down = down_smem.index(down_slot)
            grad_hidden = warpgroup_mma(grad_tile, down, zero, use_acc=False, is_async=True)
            write(
                hidden16, grad16, hidden_tile, grad_hidden_tile, hidden_desc, grad_hidden_desc,
                row, first,
            )  # fmt: skip
            total = sum_rows(grad_hidden_tile, BLOCK_H)
            bias = load_bias(up_bias, first + BLOCK_H, h, H, BLOCK_H)
            # Within the iteration: across iterations, ptxas (12.8) would wait after each step.
            grad_normed, hidden, grad_hidden, total = warpgroup_mma_wait(
                0, [grad_normed, hidden, grad_hidden, total]
            )
            mbarrier.arrive(up_empty.index(slot))
            mbarrier.arrive(down_empty.index(down_slot))
            write_first_row(total, tile_sums + first, BLOCK_H)
            slot = following
        # The normalised rows have had their last use.
        mbarrier.expect(x_again.index(w), ROWS * BLOCK_C * 2)
        tma.async_copy_global_to_shared(x_desc, [row, 0], x_again.index(w), x_tile)
        hidden16 = relu(hidden + bias.to(gl.float32)[None, :])
        grad16 = relu_backward(grad_hidden, hidden16)
        left = gl.convert_layout(grad16, A)
        grad_normed = warpgroup_mma(left, up_smem.index(slot), grad_normed, is_async=True)
        write(
            hidden16, grad16, hidden_tile, grad_hidden_tile, hidden_desc, grad_hidden_desc,
            row, last,
        )  # fmt: skip
        total = sum_rows(grad_hidden_tile, BLOCK_H)
        grad_normed, total = warpgroup_mma_wait(0, [grad_normed, total])
        mbarrier.arrive(up_empty.index(slot))
        write_first_row(total, tile_sums + last, H - last)
        i += 1
        mbarrier.wait(x_again.index(w), n & 1)
        normalise_backward(grad_normed, x_tile, grad_tile, norm_weight, mean, rstd, C, BLOCK_C)
        fence_async_shared()
        # The tile that was written last goes first: so all threads' fences come before both copies.
        tma.async_copy_shared_to_global(grad_x_desc, [row, 0], grad_tile)
        tma.async_copy_shared_to_global(x_hat_desc, [row, 0], x_tile)
        tma.store_wait(0)
        mbarrier.arrive(rows_empty.index(w))
        n += 1


@gluon.jit
def backward_kernel(
    x_desc, grad_desc, up_desc, down_desc, hidden_desc, grad_hidden_desc, x_hat_desc, grad_x_desc,
    norm_weight, norm_bias, up_bias, sums, num_tiles,
    C: gl.constexpr, H: gl.constexpr, EPS: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_H: gl.constexpr,
    UP_STAGES: gl.constexpr, DOWN_STAGES: gl.constexpr,
    GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module. ``sums`` (2 num_tiles, H + C): of each group's rows, for both biases."""
    dtype: gl.constexpr = x_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    x_smem = gl.allocate_shared_memory(dtype, [2, ROWS, BLOCK_C], x_desc.layout)
    grad_smem = gl.allocate_shared_memory(dtype, [2, ROWS, BLOCK_C], grad_desc.layout)
    up_smem = gl.allocate_shared_memory(dtype, [UP_STAGES, BLOCK_H, BLOCK_C], up_desc.layout)
    down_smem = gl.allocate_shared_memory(dtype, [DOWN_STAGES, BLOCK_C, BLOCK_H], down_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, [4, ROWS, BLOCK_H], hidden_desc.layout)
    rows_full = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    rows_empty = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    x_again = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    up_full = gl.allocate_shared_memory(gl.int64, [UP_STAGES, 1], barrier)
    up_empty = gl.allocate_shared_memory(gl.int64, [UP_STAGES, 1], barrier)
    down_full = gl.allocate_shared_memory(gl.int64, [DOWN_STAGES, 1], barrier)
    down_empty = gl.allocate_shared_memory(gl.int64, [DOWN_STAGES, 1], barrier)
    for group in gl.static_range(2):
        mbarrier.init(rows_full.index(group), 1)
        mbarrier.init(rows_empty.index(group), 1)
        mbarrier.init(x_again.index(group), 1)
    for slot in gl.static_range(UP_STAGES):
        mbarrier.init(up_full.index(slot), 1)
        mbarrier.init(up_empty.index(slot), 2)
    for slot in gl.static_range(DOWN_STAGES):
        mbarrier.init(down_full.index(slot), 1)
        mbarrier.init(down_empty.index(slot), 2)
    fence_async_shared()
    tiles = gl.to_tensor(num_tiles)
    load_args = (
        x_desc, grad_desc, up_desc, down_desc, x_smem, grad_smem, up_smem, down_smem,
        rows_full, rows_empty, up_full, up_empty, down_full, down_empty, tiles,
    )  # fmt: skip
    args = (
        norm_weight, norm_bias, up_bias, sums,
        x_desc, hidden_desc, grad_hidden_desc, x_hat_desc, grad_x_desc,
        x_smem, grad_smem, up_smem, down_smem, out_smem,
        rows_full, rows_empty, x_again, up_full, up_empty, down_full, down_empty, tiles,
    )  # fmt: skip
    # fmt: off
    gl.warp_specialize(
        [
            (compute, (0, args, C, H, EPS, BLOCK_C, BLOCK_H, UP_STAGES, DOWN_STAGES)),
            (compute, (1, args, C, H, EPS, BLOCK_C, BLOCK_H, UP_STAGES, DOWN_STAGES)),
            (load, (load_args, C, H, BLOCK_C, BLOCK_H, UP_STAGES, DOWN_STAGES)),
        ],
        [4, 1],
        [GROUP_REGISTERS, REGISTERS - 2 * GROUP_REGISTERS],
    )
    # fmt: on
