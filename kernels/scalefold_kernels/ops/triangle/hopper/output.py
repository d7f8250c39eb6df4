"""Output of triangle multiplication on Hopper GPUs; see `parts`, and `..triton` for names.

Several CTAs share an SM: they run the same instructions, which it then keeps, and wait for nothing
of each other. Each of a tile's three tensors has one place, which is given back as
soon as it has been read.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels.compiler import async_load, async_store, mma, mma_wait
from scalefold_kernels.dropout.mask import drawing
from scalefold_kernels.gluon import mma_layout, new_barriers, widen
from scalefold_kernels.ops.triangle.arguments import EPS, OutputArguments, Sizes, new_statistics
from scalefold_kernels.ops.triangle.hopper import parts
from scalefold_kernels.ops.triangle.hopper.dropout import draw, dropped_out, no_bits, other_mask
from scalefold_kernels.ops.triangle.hopper.parts import LOADER_REGISTERS, TILE

PRODUCT, GATE, Z = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)
"""Numbers of the barriers of a tile's tensors."""


@gluon.jit
def load_rows(desc, first, bar, places, HALVES: gl.constexpr):
    """A tile of a tensor with channels last, 64 of them to each place."""
    for half in gl.static_range(HALVES):
        async_load(desc, [first, half * 64], bar, places.index(half))


@gluon.jit
def load_tiles(args, C: gl.constexpr):
    """The loader warp."""
    (
        weight_desc, product_desc, gate_desc, z_desc, weight_smem, product_smem, gate_smem, z_smem,
        weight_full, full, empty, num_tiles,
    ) = args  # fmt: skip
    HALVES: gl.constexpr = C // 64
    turn = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        first = tile * TILE
        mbarrier.wait(empty.index(PRODUCT), turn ^ 1)
        mbarrier.expect(full.index(PRODUCT), TILE * C * 2)
        async_load(product_desc, [0, first], full.index(PRODUCT), product_smem)
        if tile == gl.program_id(0):
            mbarrier.expect(weight_full, C * C * 2)
            for half in gl.static_range(HALVES):
                place = weight_smem.index(half)
                async_load(weight_desc, [half * 64, 0], weight_full, place)
        mbarrier.wait(empty.index(GATE), turn ^ 1)
        mbarrier.expect(full.index(GATE), TILE * C * 2)
        load_rows(gate_desc, first, full.index(GATE), gate_smem, HALVES)
        mbarrier.wait(empty.index(Z), turn ^ 1)
        mbarrier.expect(full.index(Z), TILE * C * 2)
        load_rows(z_desc, first, full.index(Z), z_smem, HALVES)
        turn ^= 1


@gluon.jit
def update(args, SHARED: gl.constexpr, C: gl.constexpr):
    """The warp group that computes. The result overwrites z in shared memory."""
    (
        out_desc, norm_weight, norm_bias, bias, dropped, mean, reciprocal,
        weight_smem, product_smem, gate_smem, z_smem, weight_full, full, empty,
        P, ROWS, COLUMNS, num_tiles, eps,
    ) = args  # fmt: skip
    S: gl.constexpr = mma_layout(C)
    H: gl.constexpr = mma_layout(64)
    A: gl.constexpr = gl.DotOperandLayout(0, H, 2)
    dtype: gl.constexpr = out_desc.dtype
    zero = gl.full([TILE, 64], 0.0, gl.float32, H)
    bits = no_bits()
    turn = gl.to_tensor(0)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        first = tile * TILE
        if SHARED is not None:
            before = first - gl.num_programs(0) * TILE
            if (before < 0) | other_mask(first, before, P, ROWS, COLUMNS, SHARED):
                bits = draw(first, P, dropped, ROWS, COLUMNS, SHARED, C // 32)
        mbarrier.wait(full.index(PRODUCT), turn)
        x = widen(product_smem.permute((1, 0)).load(S))
        mbarrier.arrive(empty.index(PRODUCT))
        standard, mean_P, reciprocal_P = parts.standardise(x, eps)
        position = first + gl.arange(0, TILE, layout=gl.SliceLayout(1, S))
        gl.store(mean + position, mean_P, mask=position < P)
        gl.store(reciprocal + position, reciprocal_P, mask=position < P)
        normed = standard * parts.columns(norm_weight, S) + parts.columns(norm_bias, S)
        normed = gl.convert_layout(normed.to(dtype), A)
        mbarrier.wait(weight_full, 0)
        mbarrier.wait(full.index(GATE), turn)
        mbarrier.wait(full.index(Z), turn)
        for half in range(C // 64):
            weight = weight_smem.index(half).permute((1, 0))
            value = mma(normed, weight, zero, use_acc=False, is_async=True)
            opened = parts.sigmoid(widen(gate_smem.index(half).load(H)))
            shift = parts.columns(bias + half * 64, H)
            value = mma_wait(0, [value])
            value = (value + shift) * opened
            if SHARED is not None:
                value = dropped_out(value, bits, half * 64, dropped[3])
            z = z_smem.index(half)
            value += widen(z.load(H))
            z.store(value.to(dtype))
            fence_async_shared()
            async_store(out_desc, [first, half * 64], z)
        mbarrier.arrive(empty.index(GATE))
        tma.store_wait(0)
        mbarrier.arrive(empty.index(Z))
        turn ^= 1


@gluon.jit(do_not_specialize=["layer", "num_tiles"])
def output_forward_kernel(
    product_desc, gate_desc, z_desc, weight_desc, out_desc, norm_weight, norm_bias, bias,
    key, layer, threshold, factor, mean, reciprocal, P, ROWS, COLUMNS, num_tiles, eps,
    SHARED: gl.constexpr, C: gl.constexpr,
):  # fmt: skip
    """Result (P, Z), statistics (P,)."""
    dtype: gl.constexpr = z_desc.dtype
    halves: gl.constexpr = C // 64
    weight_smem = gl.allocate_shared_memory(dtype, [halves, 64, C], weight_desc.layout)
    product_smem = gl.allocate_shared_memory(dtype, [C, TILE], product_desc.layout)
    gate_smem = gl.allocate_shared_memory(dtype, [halves, TILE, 64], gate_desc.layout)
    z_smem = gl.allocate_shared_memory(dtype, [halves, TILE, 64], z_desc.layout)
    full, empty = new_barriers(3, 1), new_barriers(3, 1)
    weight_full = new_barriers(1, 1).index(0)
    fence_async_shared()
    P, num_tiles = gl.to_tensor(P), gl.to_tensor(num_tiles)
    dropped = key, gl.to_tensor(layer), gl.to_tensor(threshold), factor
    load_args = (
        weight_desc, product_desc, gate_desc, z_desc, weight_smem, product_smem, gate_smem, z_smem,
        weight_full, full, empty, num_tiles,
    )  # fmt: skip
    args = (
        out_desc, norm_weight, norm_bias, bias, dropped, mean, reciprocal,
        weight_smem, product_smem, gate_smem, z_smem, weight_full, full, empty,
        P, gl.to_tensor(ROWS), gl.to_tensor(COLUMNS), num_tiles, eps,
    )  # fmt: skip
    gl.warp_specialize(
        [(update, (args, SHARED, C)), (load_tiles, (load_args, C))], [1], [LOADER_REGISTERS]
    )


def empty_mask(z: Tensor, shared_dim: int | None) -> Tensor:
    """No memory: the kernels draw the dropout mask again in backward."""
    return z.new_empty(0)


def output_forward(
    sizes: Sizes, given: OutputArguments, z: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Updated z, mean and reciprocal deviation of each position's product, `empty_mask`."""
    product, gate, weights, dropout = given
    out = torch.empty_like(z)
    mean, reciprocal = new_statistics(z[..., 0])
    ctas, num_tiles, registers = parts.sharing(sizes, z, 3 if sizes.pair == 64 else 2)
    output_forward_kernel[(ctas,)](
        parts.column_tiles(product, sizes.hidden), *(parts.row_tiles(x, 64) for x in (gate, z)),
        parts.weight_tiles(weights.matrix), parts.row_tiles(out, 64),
        weights.scale, weights.shift, weights.bias, *drawing(dropout),
        mean, reciprocal, sizes.positions, *z.shape[1:3], num_tiles, EPS,
        SHARED=None if dropout is None else dropout.shared, C=sizes.pair, maxnreg=registers,
    )  # fmt: skip
    return out, mean, reciprocal, empty_mask(z, None)
