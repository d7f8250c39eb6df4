"""Output of triangle multiplication on Hopper GPUs; see `parts`, and `..triton` for names.

Several CTAs share an SM: they run the same instructions, which it then keeps, and wait for nothing
of each other. For each tile, the loader brings product, gate and z to one place each. The warp
group normalises the product, gives its place back, and multiplies it with the weight, which stays.
The result overwrites z, whose place is given back when TMA has stored it.
"""

from collections import namedtuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import smem
from scalefold_kernels.compiler import async_store, mma, mma_wait
from scalefold_kernels.dropout.mask import drawing
from scalefold_kernels.gluon import ROWS, mma_layout, one_group, widen, zeros
from scalefold_kernels.ops.triangle.arguments import OutputArguments, Sizes, new_stats
from scalefold_kernels.ops.triangle.hopper import parts
from scalefold_kernels.ops.triangle.hopper.dropout import draw, dropped_out, no_bits, other_mask
from scalefold_kernels.ops.triangle.hopper.parts import LOADER_REGISTERS

PRODUCT, GATE, Z = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)
"""Numbers of the barriers of a tile's tensors."""

Cta = namedtuple(
    "Cta",
    "weight_desc product_desc gate_desc z_desc out_desc norm_weight_ptr norm_bias_ptr bias_ptr "
    "dropped mean_ptr rstd_ptr weight product gate z weight_full full empty num_positions size_i "
    "size_j num_tiles SHARED C",
)


@gluon.jit
def load(cta):
    turn = gl.to_tensor(0)
    for tile in range(gl.program_id(0), cta.num_tiles, gl.num_programs(0)):
        first = tile * ROWS
        mbarrier.wait(cta.empty.index(PRODUCT), turn ^ 1)
        smem.load(cta.product_desc, [0, first], cta.full.index(PRODUCT), cta.product)
        if tile == gl.program_id(0):
            parts.load_weight(cta.weight_desc, cta.weight_full, cta.weight)
        mbarrier.wait(cta.empty.index(GATE), turn ^ 1)
        parts.load_rows(cta.gate_desc, first, cta.full.index(GATE), cta.gate)
        mbarrier.wait(cta.empty.index(Z), turn ^ 1)
        parts.load_rows(cta.z_desc, first, cta.full.index(Z), cta.z)
        turn ^= 1


@gluon.jit
def compute(cta):
    WHOLE: gl.constexpr = mma_layout(cta.C)
    HALF: gl.constexpr = mma_layout(64)
    A: gl.constexpr = gl.DotOperandLayout(0, HALF, 2)
    dtype: gl.constexpr = cta.out_desc.dtype
    zero = zeros(ROWS, 64)
    bits = no_bits()
    turn = gl.to_tensor(0)
    for tile in range(gl.program_id(0), cta.num_tiles, gl.num_programs(0)):
        first = tile * ROWS
        if cta.SHARED is not None:
            before = first - gl.num_programs(0) * ROWS
            sizes = cta.num_positions, cta.size_i, cta.size_j
            if (before < 0) | other_mask(first, before, *sizes, cta.SHARED):
                bits = draw(first, cta.dropped, *sizes, cta.SHARED, cta.C // 32)
        mbarrier.wait(cta.full.index(PRODUCT), turn)
        x = widen(cta.product.permute((1, 0)).load(WHOLE))
        mbarrier.arrive(cta.empty.index(PRODUCT))
        normed = gl.convert_layout(parts.normalised(x, first, cta).to(dtype), A)
        mbarrier.wait(cta.weight_full, 0)
        mbarrier.wait(cta.full.index(GATE), turn)
        mbarrier.wait(cta.full.index(Z), turn)
        for half in range(cta.C // 64):
            weight = cta.weight.index(half).permute((1, 0))
            value = mma(normed, weight, zero, use_acc=False, is_async=True)
            opened = parts.sigmoid(widen(cta.gate.index(half).load(HALF)))
            bias = parts.load_row(cta.bias_ptr + half * 64, HALF)
            value = mma_wait(0, [value])
            value = (value + bias) * opened
            if cta.SHARED is not None:
                value = dropped_out(value, bits, half * 64, cta.dropped[3])
            z = cta.z.index(half)
            value += widen(z.load(HALF))
            z.store(value.to(dtype))
            fence_async_shared()
            async_store(cta.out_desc, [first, half * 64], z)
        mbarrier.arrive(cta.empty.index(GATE))
        tma.store_wait(0)
        mbarrier.arrive(cta.empty.index(Z))
        turn ^= 1


@gluon.jit(do_not_specialize=["layer", "num_tiles"])
def triangle_output_forward_hopper_kernel(
    product_desc, gate_desc, z_desc, weight_desc, out_desc, norm_weight_ptr, norm_bias_ptr,
    bias_ptr, key_ptr, layer, threshold, scale, mean_ptr, rstd_ptr, num_positions, size_i, size_j,
    num_tiles, SHARED: gl.constexpr, C: gl.constexpr,
):  # fmt: skip
    """Result (P, Z), statistics (P,)."""
    halves: gl.constexpr = C // 64
    dropped = key_ptr, gl.to_tensor(layer), gl.to_tensor(threshold), scale
    one_group(Cta(
        weight_desc, product_desc, gate_desc, z_desc, out_desc, norm_weight_ptr, norm_bias_ptr,
        bias_ptr, dropped, mean_ptr, rstd_ptr, smem.tiles(weight_desc, halves),
        smem.tile(product_desc), smem.tiles(gate_desc, halves), smem.tiles(z_desc, halves),
        smem.barrier(), smem.barriers(3, 1), smem.barriers(3, 1), gl.to_tensor(num_positions),
        gl.to_tensor(size_i), gl.to_tensor(size_j), gl.to_tensor(num_tiles), SHARED, C,
    ), compute, load, LOADER_REGISTERS)  # fmt: skip


def output_forward(
    sizes: Sizes, given: OutputArguments, z: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    product, gate, weights, dropout = given
    out = torch.empty_like(z)
    mean, rstd = new_stats(z[..., 0])
    ctas, num_tiles, registers = parts.sharing(sizes, z, 3 if sizes.pair == 64 else 2)
    triangle_output_forward_hopper_kernel[(ctas,)](
        parts.column_tiles(product, sizes.hidden), *(parts.row_tiles(x, 64) for x in (gate, z)),
        parts.weight_tiles(weights.matrix), parts.row_tiles(out, 64),
        weights.norm_weight, weights.norm_bias, weights.bias, *drawing(dropout),
        mean, rstd, sizes.positions, *z.shape[1:3], num_tiles,
        SHARED=None if dropout is None else dropout.shared, C=sizes.pair, maxnreg=registers,
    )  # fmt: skip
    return out, mean, rstd
