"""Gradient of the outer product's weight on Hopper GPUs, the outer product never in memory.

``out[z,c,d] = sum_ij grad[i,j,z] sum_s a[i,c,s] b[j,d,s]``. A CTA has 32 i and 8 c, four of
them for each of its two warp groups. The loader brings ``b`` and ``grad`` of a pair of j in a ring
for both. A group's outer product, (2 j, d) by (4 c, i), goes through shared memory into the product
with the gradient, in registers; that of the next pair is on its way meanwhile. Products are 128
wide: narrower ones would read more from shared memory than it delivers.
"""

from collections import namedtuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_load, mma, mma_wait, reinterpret
from scalefold_kernels.gluon import ROWS, two_groups, zeros
from scalefold_kernels.ops.outer_product.op import Factors, split_evenly
from scalefold_kernels.tma import tiles_of

PAIR = gl.constexpr(2)
"""j of a step."""

BLOCK_I = gl.constexpr(32)
GROUP_C = gl.constexpr(4)
"""c of a warp group."""

SIZE_D = gl.constexpr(32)
SIZE_S = gl.constexpr(128)
COLUMNS = gl.constexpr(128)
"""c and i of a group, and c and d."""

Cta = namedtuple("Cta", "out_ptr a b grad outer_smem size_c size_z size_j j_per_part")


@gluon.jit
def load(cta):
    c, i = gl.program_id(0) * 2 * GROUP_C, gl.program_id(1) * BLOCK_I
    for w in gl.static_range(2):
        ring.fill(cta.a, w, [c + w * GROUP_C, i, 0])
    start = gl.program_id(2) * cta.j_per_part
    bytes: gl.constexpr = smem.tile_bytes(cta.b.desc) + 2 * PAIR * smem.tile_bytes(cta.grad.desc)
    n = gl.to_tensor(0)
    for j in range(start, gl.minimum(start + cta.j_per_part, cta.size_j), PAIR):
        slot = ring.wait_empty(cta.b, n, bytes)
        ring.copy(cta.b, slot, [j, 0, 0])
        for part in gl.static_range(2 * PAIR):
            async_load(
                cta.grad.desc, [j + part // 2, i, part % 2 * ROWS], cta.b.full.index(slot),
                cta.grad.slots.index(2 * PAIR * slot + part),
            )  # fmt: skip
        n += 1


@gluon.jit
def multiply_outer(b_smem, slot, a_tile):
    """Start the outer product of a pair of j: (j and d, c and i)."""
    zero = zeros(ROWS, COLUMNS)
    b = b_smem.index(slot).reshape([ROWS, SIZE_S])
    a = a_tile.reshape([COLUMNS, SIZE_S]).permute((1, 0))
    return mma(b, a, zero, use_acc=False, is_async=True)


@gluon.jit
def store_outer(outer, outer_smem, w: gl.constexpr):
    """Bring it into the order of the second product, a tile (c and d, i) for each j."""
    L: gl.constexpr = gl.NVMMASharedLayout.get_default_for(
        [PAIR, COLUMNS, BLOCK_I], outer_smem.dtype
    )
    tiles = reinterpret(outer_smem, outer_smem.dtype, [2, PAIR, COLUMNS, BLOCK_I], L)
    narrow = outer.to(outer_smem.dtype).reshape([PAIR, SIZE_D, GROUP_C, BLOCK_I])
    tiles.index(w).store(narrow.permute((0, 2, 1, 3)).reshape([PAIR, COLUMNS, BLOCK_I]))
    fence_async_shared()


@gluon.jit
def multiply_grad(grad_smem, slot, outer_smem, w: gl.constexpr, low, high):
    """Start the products with the gradient; ``low`` and ``high`` have 64 z each."""
    for of in gl.static_range(PAIR):
        outer = outer_smem.index(PAIR * w + of).permute((1, 0))
        part = 2 * (PAIR * slot + of)
        grad = grad_smem.index(part).reshape([BLOCK_I, ROWS]).permute((1, 0))
        low = mma(grad, outer, low, is_async=True)
        grad = grad_smem.index(part + 1).reshape([BLOCK_I, ROWS]).permute((1, 0))
        high = mma(grad, outer, high, is_async=True)
    return low, high


@gluon.jit
def write(total, out_ptr, z, c, size_c, size_z):
    """A part's sums of 64 z, as (part, z, c, d)."""
    L: gl.constexpr = total.type.layout
    part = gl.program_id(2) * gl.num_programs(1) + gl.program_id(1)
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, L))
    c += column // SIZE_D
    d = column % SIZE_D
    z += gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
    rows = (part.to(gl.int64) * size_z + z) * size_c * size_c
    inside = (z < size_z)[:, None] & ((c < size_c) & (d < size_c))[None, :]
    gl.store(out_ptr + rows[:, None] + (c * size_c + d)[None, :], total, mask=inside)


@gluon.jit
def compute(w: gl.constexpr, cta):
    start = gl.program_id(2) * cta.j_per_part
    num_pairs = (gl.minimum(start + cta.j_per_part, cta.size_j) - start + PAIR - 1) // PAIR
    low = zeros(ROWS, COLUMNS)
    high = low
    a_tile = cta.a.slots.index(w)
    mbarrier.wait(cta.a.full.index(w), 0)
    mbarrier.wait(cta.b.full.index(0), 0)
    outer = mma_wait(0, [multiply_outer(cta.b.slots, 0, a_tile)])
    store_outer(outer, cta.outer_smem, w)
    slot = gl.to_tensor(0)
    for n in range(1, num_pairs):
        following = ring.wait_full(cta.b, n)
        outer = multiply_outer(cta.b.slots, following, a_tile)
        low, high = multiply_grad(cta.grad.slots, slot, cta.outer_smem, w, low, high)
        # Within the iteration: across iterations, ptxas (12.8) would wait after each step.
        outer, low, high = mma_wait(0, [outer, low, high])
        mbarrier.arrive(cta.b.empty.index(slot))
        store_outer(outer, cta.outer_smem, w)
        slot = following
    low, high = multiply_grad(cta.grad.slots, slot, cta.outer_smem, w, low, high)
    low, high = mma_wait(0, [low, high])
    c = (gl.program_id(0) * 2 + w) * GROUP_C
    write(low, cta.out_ptr, 0, c, cta.size_c, cta.size_z)
    write(high, cta.out_ptr, ROWS, c, cta.size_c, cta.size_z)


@gluon.jit
def outer_product_weight_gradient_hopper_kernel(
    a_desc, b_desc, grad_desc, out_ptr, size_c, size_z, size_j, j_per_part,
    STAGES: gl.constexpr, GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module. ``out`` (part, z, c, d): sums of a block of i and ``j_per_part`` j each.

    ``a_desc`` (c, i, s), ``b_desc`` (j, d, s), ``grad_desc`` (j, i, z).
    """
    outer_smem = smem.matrices(2 * PAIR, COLUMNS, BLOCK_I)
    a, b = ring.new(a_desc, 2, 0), ring.new(b_desc, STAGES, 2)
    grad = ring.along(b, grad_desc, 2 * PAIR * STAGES)
    two_groups(Cta(
        out_ptr, a, b, grad, outer_smem, gl.to_tensor(size_c), gl.to_tensor(size_z),
        gl.to_tensor(size_j), gl.to_tensor(j_per_part),
    ), compute, load, GROUP_REGISTERS)  # fmt: skip


def weight_gradient_parts(grad_IJZ: Tensor, factors: Factors) -> Tensor:
    """Partial sums of the weight's gradient, (parts, Z, C * C), float32."""
    size_i, size_j, size_z = grad_IJZ.shape
    channels = factors.a.shape[1]
    blocks = triton.cdiv(channels, (2 * GROUP_C.value)), triton.cdiv(size_i, BLOCK_I.value)
    num_pairs = triton.cdiv(size_j, PAIR.value)
    num_parts, pairs = split_evenly(blocks[0] * blocks[1], 1, num_pairs, grad_IJZ.device)
    shape = num_parts * blocks[1], size_z, channels**2
    parts = torch.empty(shape, dtype=torch.float32, device=grad_IJZ.device)
    outer_product_weight_gradient_hopper_kernel[(*blocks, num_parts)](
        tiles_of(factors.a.transpose(0, 1), GROUP_C.value, BLOCK_I.value, SIZE_S.value),
        tiles_of(factors.b, PAIR.value, SIZE_D.value, SIZE_S.value),
        tiles_of(grad_IJZ.transpose(0, 1), 1, BLOCK_I.value, ROWS.value), parts, channels, size_z,
        size_j, PAIR.value * pairs,
        **factors.config("outer_product_weight_gradient_hopper"),
    )  # fmt: skip
    return parts
