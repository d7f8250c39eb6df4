"""First kernel of the backward: hidden channels again, and their gradient; see `parts`.

Both go to memory, for three products with sums over hidden channels or over rows. So do the
normalised rows before the norm's weight and bias: ``x_hat`` serves LayerNorm's backward and the
weights' gradients.

A program has 128 rows of x and of the gradient in shared memory, and the weights pass by in pieces
of 64 channels.
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

from scalefold_kernels.hopper import REGISTERS, ROWS, mma_layout, row_statistics, widen
from scalefold_kernels.transition.hopper.parts import (
    DEPTH,
    load_bias,
    relu,
    relu_backward,
    sum_rows,
    write_first_row,
)


@gluon.jit
def load(
    args,
    C: gl.constexpr, H: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_H: gl.constexpr, STAGES: gl.constexpr, X_STAGES: gl.constexpr,
):  # fmt: skip
    """The loader warp."""
    (
        x_desc, grad_desc, up_desc, down_desc, x_smem, grad_smem, ring,
        rows_full, rows_empty, full, empty, num_tiles,
    ) = args  # fmt: skip
    i = gl.to_tensor(0)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        for w in gl.static_range(2):
            place = n % X_STAGES * 2 + w
            at = [(2 * tile + w) * ROWS, 0]
            mbarrier.wait(rows_empty.index(place), ((n // X_STAGES) & 1) ^ 1)
            mbarrier.expect(rows_full.index(place), 2 * ROWS * BLOCK_C * 2)
            tma.async_copy_global_to_shared(x_desc, at, rows_full.index(place), x_smem.index(place))
            tma.async_copy_global_to_shared(
                grad_desc, at, rows_full.index(place), grad_smem.index(place)
            )
        n += 1
        for first in range(0, H, BLOCK_H):
            for c in gl.static_range(0, C, DEPTH):
                i = load_piece(up_desc, [first, c], ring, full, empty, i, BLOCK_H, STAGES)
            for c in gl.static_range(0, C, DEPTH):
                i = load_piece(down_desc, [c, first], ring, full, empty, i, BLOCK_H, STAGES)


@gluon.jit
def load_piece(
    desc, at, ring, full, empty, i, BLOCK_H: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """The i-th piece of weights into the ring; returns i + 1."""
    slot = i % STAGES
    mbarrier.wait(empty.index(slot), ((i // STAGES) & 1) ^ 1)
    mbarrier.expect(full.index(slot), BLOCK_H * DEPTH * 2)
    piece = ring.index(slot)._reinterpret(desc.dtype, desc.block_type.shape, desc.layout)
    tma.async_copy_global_to_shared(desc, at, full.index(slot), piece)
    return i + 1


@gluon.jit
def multiply(
    rows, ring, full, empty, i,
    TRANSPOSED: gl.constexpr, right_layout: gl.constexpr,
    C: gl.constexpr, BLOCK_H: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Rows by the next pieces of the ring, (H, C) or transposed; the product and the next i."""
    product = gl.full([ROWS, BLOCK_H], 0.0, gl.float32, mma_layout(BLOCK_H))
    for c in gl.static_range(0, C, DEPTH):
        slot = i % STAGES
        mbarrier.wait(full.index(slot), (i // STAGES) & 1)
        if TRANSPOSED:
            right = ring.index(slot)._reinterpret(rows.dtype, [DEPTH, BLOCK_H], right_layout)
        else:
            right = ring.index(slot).permute((1, 0))
        left = rows.slice(c, DEPTH, dim=1)
        product = warpgroup_mma(left, right, product, use_acc=c > 0, is_async=True)
        if c > 0:
            product = warpgroup_mma_wait(1, [product])
            mbarrier.arrive(empty.index((i - 1) % STAGES))
        i += 1
    product = warpgroup_mma_wait(0, [product])
    mbarrier.arrive(empty.index((i - 1) % STAGES))
    return product, i


@gluon.jit
def write(values, tile, desc, at):
    """Start copying away, once the copies before have left shared memory."""
    tma.store_wait(0)
    tile.store(values)
    fence_async_shared()
    tma.async_copy_shared_to_global(desc, at, tile)


@gluon.jit
def normalise(
    x_tile, weight, bias, out_tile, x_hat_desc, row,
    C: gl.constexpr, BLOCK_H: gl.constexpr, BLOCK_C: gl.constexpr, EPS: gl.constexpr,
):  # fmt: skip
    """LayerNorm of a tile's rows in its place, ``x_hat`` to memory; 1 / standard deviation."""
    L: gl.constexpr = mma_layout(DEPTH)
    column = gl.arange(0, DEPTH, layout=gl.SliceLayout(0, L))
    mean, rstd = row_statistics(x_tile, C, BLOCK_C, EPS)
    mean = gl.convert_layout(mean, gl.SliceLayout(1, L))
    rstd = gl.convert_layout(rstd, gl.SliceLayout(1, L))
    for c in gl.static_range(0, C, DEPTH):
        if c % BLOCK_H == 0:
            tma.store_wait(0)
        piece = x_tile.slice(c, DEPTH, dim=1)
        x_hat = (widen(piece.load(L)) - mean[:, None]) * rstd[:, None]
        out_tile.slice(c % BLOCK_H, DEPTH, dim=1).store(x_hat.to(x_tile.dtype))
        # Both are 0 beyond C.
        scale = gl.load(weight + c + column, mask=c + column < C, other=0.0).to(gl.float32)
        shift = gl.load(bias + c + column, mask=c + column < C, other=0.0).to(gl.float32)
        piece.store((x_hat * scale[None, :] + shift[None, :]).to(x_tile.dtype))
        if (c + DEPTH) % BLOCK_H == 0 or c + DEPTH >= C:
            fence_async_shared()
            tma.async_copy_shared_to_global(x_hat_desc, [row, c // BLOCK_H * BLOCK_H], out_tile)
    return rstd


@gluon.jit
def compute(
    w: gl.constexpr, args,
    C: gl.constexpr, H: gl.constexpr, EPS: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_H: gl.constexpr, STAGES: gl.constexpr, X_STAGES: gl.constexpr,
):  # fmt: skip
    """Warp group ``w``."""
    (
        norm_weight, norm_bias, up_bias, rstds, sums,
        hidden_desc, grad_hidden_desc, x_hat_desc, x_smem, grad_smem, ring, out_smem,
        rows_full, rows_empty, full, empty, num_tiles, num_rows,
    ) = args  # fmt: skip
    L: gl.constexpr = mma_layout(BLOCK_H)
    down_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([DEPTH, BLOCK_H], gl.bfloat16)
    h = gl.arange(0, BLOCK_H, layout=gl.SliceLayout(0, L))
    out_tile = out_smem.index(w)
    i = gl.to_tensor(0)
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        row = (2 * tile + w) * ROWS
        place = n % X_STAGES * 2 + w
        x_tile, grad_tile = x_smem.index(place), grad_smem.index(place)
        mbarrier.wait(rows_full.index(place), (n // X_STAGES) & 1)
        total = warpgroup_mma_wait(0, [sum_rows(grad_tile, BLOCK_C)])
        write_first_row(total, sums + (2 * tile + w) * C, C)
        rstd = normalise(
            x_tile, norm_weight, norm_bias, out_tile, x_hat_desc, row, C, BLOCK_H, BLOCK_C, EPS
        )
        r = row + gl.arange(0, ROWS, layout=rstd.type.layout)
        gl.store(rstds + r, rstd, mask=r < num_rows)
        for first in range(0, H, BLOCK_H):
            bias = load_bias(up_bias, first, h, H, BLOCK_H)
            hidden, i = multiply(
                x_tile, ring, full, empty, i, False, down_layout, C, BLOCK_H, STAGES
            )
            hidden16 = relu(hidden + bias.to(gl.float32)[None, :])
            write(hidden16, out_tile, hidden_desc, [row, first])
            grad, i = multiply(
                grad_tile, ring, full, empty, i, True, down_layout, C, BLOCK_H, STAGES
            )
            write(relu_backward(grad, hidden16), out_tile, grad_hidden_desc, [row, first])
        mbarrier.arrive(rows_empty.index(place))
        n += 1
    tma.store_wait(0)


@gluon.jit
def hidden_kernel(
    x_desc, grad_desc, up_desc, down_desc, hidden_desc, grad_hidden_desc, x_hat_desc,
    norm_weight, norm_bias, up_bias, rstds, sums, num_tiles, num_rows,
    C: gl.constexpr, H: gl.constexpr, EPS: gl.constexpr,
    BLOCK_C: gl.constexpr, BLOCK_H: gl.constexpr, STAGES: gl.constexpr, X_STAGES: gl.constexpr,
    GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module. ``rstds`` (rows), ``sums`` (2 num_tiles, C): of each group's gradients."""
    dtype: gl.constexpr = x_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    places: gl.constexpr = 2 * X_STAGES
    x_smem = gl.allocate_shared_memory(dtype, [places, ROWS, BLOCK_C], x_desc.layout)
    grad_smem = gl.allocate_shared_memory(dtype, [places, ROWS, BLOCK_C], grad_desc.layout)
    ring = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_H, DEPTH], up_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, [2, ROWS, BLOCK_H], hidden_desc.layout)
    rows_full = gl.allocate_shared_memory(gl.int64, [places, 1], barrier)
    rows_empty = gl.allocate_shared_memory(gl.int64, [places, 1], barrier)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for place in gl.static_range(places):
        mbarrier.init(rows_full.index(place), 1)
        mbarrier.init(rows_empty.index(place), 1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), 1)
        mbarrier.init(empty.index(slot), 2)
    fence_async_shared()
    tiles, rows = gl.to_tensor(num_tiles), gl.to_tensor(num_rows)
    load_args = (
        x_desc, grad_desc, up_desc, down_desc, x_smem, grad_smem, ring,
        rows_full, rows_empty, full, empty, tiles,
    )  # fmt: skip
    args = (
        norm_weight, norm_bias, up_bias, rstds, sums,
        hidden_desc, grad_hidden_desc, x_hat_desc, x_smem, grad_smem, ring, out_smem,
        rows_full, rows_empty, full, empty, tiles, rows,
    )  # fmt: skip
    # fmt: off
    gl.warp_specialize(
        [
            (compute, (0, args, C, H, EPS, BLOCK_C, BLOCK_H, STAGES, X_STAGES)),
            (compute, (1, args, C, H, EPS, BLOCK_C, BLOCK_H, STAGES, X_STAGES)),
            (load, (load_args, C, H, BLOCK_C, BLOCK_H, STAGES, X_STAGES)),
        ],
        [4, 1],
        [GROUP_REGISTERS, REGISTERS - 2 * GROUP_REGISTERS],
    )
    # fmt: on
