"""Batched products of matrices on Hopper GPUs, one or two of them side by side.

A tile is 256 x 128: two warp groups have 128 rows each, in registers. The loader brings 64 of the
inner dimension at a time in a ring, which both groups give back one step later. Two products that
share an operand take turns in a CTA, so that it comes from the L2 cache the second time.
"""

from collections import namedtuple
from collections.abc import Sequence

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_load, async_store, mma, mma_wait, reinterpret
from scalefold_kernels.gluon import two_groups, zeros
from scalefold_kernels.ops.triangle.arguments import Product
from scalefold_kernels.ops.triangle.hopper import parts
from scalefold_kernels.ops.triangle.hopper.parts import GROUPS
from scalefold_kernels.tma import num_ctas, reachable, tiles_of

BLOCK = gl.constexpr(128)
"""Rows of a warp group, and columns."""

DEPTH = gl.constexpr(64)
"""Elements of the inner dimension at a time."""

_STAGES = 3
"""Places of blocks: as many as there is room for beside the result."""

Cta = namedtuple("Cta", "products x y out blocks rounds PRODUCTS")


@gluon.constexpr_function
def is_transposed(desc):
    """Whether the inner dimension of a block is not the one that is contiguous."""
    return desc.block_shape[1] == DEPTH.value


@gluon.jit
def new_blocks(NUMBER: gl.constexpr):
    """Shared memory for blocks of operands, plain or transposed."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 3)
    return gl.allocate_shared_memory(gl.bfloat16, [NUMBER, 1, BLOCK, DEPTH], layout)


@gluon.jit
def place(tile, sizes):
    """Number of the matrix, first row and first column of a tile; whether there is one."""
    batch, rows, columns, _inner = sizes
    num_rows, num_columns = gl.cdiv(rows, GROUPS * BLOCK), gl.cdiv(columns, BLOCK)
    rest = tile // num_columns
    row, column = rest % num_rows * (GROUPS * BLOCK), tile % num_columns * BLOCK
    return rest // num_rows, row, column, rest // num_rows < batch


@gluon.jit
def load_block(desc, matrix, k, at, bar, block):
    """Start the copy of a block of an operand, plain or transposed as it is in memory."""
    if is_transposed(desc):
        async_load(desc, [matrix, k, at], bar, smem.as_described(block, desc))
    else:
        async_load(desc, [matrix, at, k], bar, smem.as_described(block, desc))


@gluon.jit
def load(cta):
    n = gl.to_tensor(0)
    for i in range(cta.rounds):
        for p in gl.static_range(cta.PRODUCTS):
            x_desc, y_desc, _out_desc, sizes = cta.products[p]
            number = i * gl.num_programs(0) + gl.program_id(0)
            matrix, row, column, there = place(number, sizes)
            if there:
                for k in range(0, sizes[3], DEPTH):
                    slot = ring.wait_empty(cta.blocks, n, smem.tile_bytes(x_desc, x_desc, y_desc))
                    bar = cta.blocks.full.index(slot)
                    load_block(y_desc, matrix, k, column, bar, cta.y.index(slot))
                    for w in gl.static_range(GROUPS):
                        first = row + w * BLOCK
                        tile = cta.x.index(slot * GROUPS + w)
                        load_block(x_desc, matrix, k, first, bar, tile)
                    n += 1


@gluon.jit
def operand(desc, block):
    """A block as (its 128 rows or columns, inner dimension)."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    block = reinterpret(block, desc.dtype, desc.block_shape[1:], layout)
    if is_transposed(desc):
        return block.permute((1, 0))
    else:
        return block


@gluon.jit
def compute(w, cta):
    out = cta.out.index(w)
    n = gl.to_tensor(0)
    for i in range(cta.rounds):
        for p in gl.static_range(cta.PRODUCTS):
            x_desc, y_desc, out_desc, sizes = cta.products[p]
            tile = i * gl.num_programs(0) + gl.program_id(0)
            matrix, row, column, there = place(tile, sizes)
            if there:
                total = zeros(BLOCK, BLOCK)
                for k in range(0, sizes[3], DEPTH):
                    slot = ring.wait_full(cta.blocks, n)
                    x = operand(x_desc, cta.x.index(slot * GROUPS + w))
                    y = operand(y_desc, cta.y.index(slot)).permute((1, 0))
                    total = mma(x, y, total, is_async=True)
                    total = mma_wait(1, [total])
                    if k > 0:
                        mbarrier.arrive(cta.blocks.empty.index(ring.slot(cta.blocks, n - 1)))
                    n += 1
                total = mma_wait(0, [total])
                mbarrier.arrive(cta.blocks.empty.index(ring.slot(cta.blocks, n - 1)))
                tma.store_wait(0)
                out.reshape([BLOCK, BLOCK]).store(total.to(out_desc.dtype))
                fence_async_shared()
                async_store(out_desc, [matrix, row + w * BLOCK, column], out)
    tma.store_wait(0)


@gluon.jit
def triangle_product_hopper_kernel(
    x_desc, y_desc, out_desc, rows, columns, inner,
    x_2_desc, y_2_desc, out_2_desc, rows_2, columns_2, inner_2, batch,
    PRODUCTS: gl.constexpr, STAGES: gl.constexpr, GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Products (batch, rows, inner) x (batch, inner, columns); for operands see `is_transposed`."""
    batch = gl.to_tensor(batch)
    sizes = batch, gl.to_tensor(rows), gl.to_tensor(columns), gl.to_tensor(inner)
    sizes_2 = batch, gl.to_tensor(rows_2), gl.to_tensor(columns_2), gl.to_tensor(inner_2)
    num_tiles = gl.cdiv(sizes[1], GROUPS * BLOCK) * gl.cdiv(sizes[2], BLOCK)
    if PRODUCTS == 2:
        num_tiles_2 = gl.cdiv(sizes_2[1], GROUPS * BLOCK) * gl.cdiv(sizes_2[2], BLOCK)
        num_tiles = gl.maximum(num_tiles, num_tiles_2)
    rounds = gl.cdiv(batch * num_tiles, gl.num_programs(0))
    products = (x_desc, y_desc, out_desc, sizes), (x_2_desc, y_2_desc, out_2_desc, sizes_2)
    two_groups(Cta(
        products, new_blocks(STAGES * GROUPS), new_blocks(STAGES), smem.tiles(out_desc, GROUPS),
        ring.barriers(STAGES, GROUPS), rounds, PRODUCTS,
    ), compute, load, GROUP_REGISTERS, gl.to_tensor(0), gl.to_tensor(1))  # fmt: skip


def why_not(function: str, todo: Sequence[Product]) -> str | None:
    for product in todo:
        if any(t.dtype != torch.bfloat16 for t in product):
            return f"takes bfloat16, not {product.x.dtype}"
        if any(t.numel() == 0 or not reachable(_as_it_lies(t)) for t in product):
            return "TMA does not reach operands with rows that are no multiple of 16 bytes apart"
        rows, columns, _ = product.sizes
        if 4 * rows * columns <= 3 * _num_tiles(product) * GROUPS.value * BLOCK.value**2:
            return f"a quarter or more of its tiles would be padding for {rows} x {columns}"
    return None


def products(todo: Sequence[Product]) -> list[Tensor]:
    """Products (C, B, rows, columns), contiguous: one or two of the same C and B, in one launch."""
    first, last = todo[0], todo[-1]  # the second one's arguments are unused where it is one
    results = [p.x.new_empty(*p.x.shape[:2], *p.sizes[:2]) for p in todo]
    batch = first.x.shape[0] * first.x.shape[1]
    num_tiles = batch * max(map(_num_tiles, todo))
    triangle_product_hopper_kernel[(num_ctas(num_tiles, first.x.device),)](
        *_descriptors(first, results[0]), *first.sizes,
        *_descriptors(last, results[-1]), *last.sizes,
        batch, PRODUCTS=len(todo), STAGES=_STAGES, GROUP_REGISTERS=parts.GROUP_REGISTERS,
    )  # fmt: skip
    return results


def _num_tiles(product: Product) -> int:
    """Tiles of a matrix of the result."""
    rows, columns, _ = product.sizes
    return triton.cdiv(rows, GROUPS.value * BLOCK.value) * triton.cdiv(columns, BLOCK.value)


def _descriptors(product: Product, out: Tensor) -> tuple[TensorDescriptor, ...]:
    """Describe blocks of both operands, plain or transposed as in memory, and of the result."""
    block, depth = BLOCK.value, DEPTH.value
    x, y, out = (t.flatten(0, 1) for t in (*product, out))
    return (
        tiles_of(x, 1, block, depth) if _is_plain(x) else tiles_of(x.mT, 1, depth, block),
        tiles_of(y, 1, depth, block) if _is_plain(y) else tiles_of(y.mT, 1, block, depth),
        tiles_of(out, 1, block, block),
    )


def _is_plain(x: Tensor) -> bool:
    return x.stride(-1) == 1


def _as_it_lies(x: Tensor) -> Tensor:
    """The operand or its transpose, whichever has rows in memory."""
    return x if _is_plain(x) else x.mT
