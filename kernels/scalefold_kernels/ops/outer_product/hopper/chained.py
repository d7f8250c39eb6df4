"""Two products in a chain on Hopper GPUs, the first one's result never in memory.

``out[x,y,n] = sum_kd (sum_m first[k,x,m] second[y,m,d]) third[k,d,n]``. The mean and both operands'
gradients are of this form:

==========  =  =  =  =  =  =  ======  ========  =======
what        x  y  k  m  d  n  first   second    third
==========  =  =  =  =  =  =  ======  ========  =======
forward     i  j  c  s  d  z  a       b         weight
a's         i  c  j  z  d  s  grad    weight    b
b's         j  d  i  z  c  s  grad    weight    a
==========  =  =  =  =  =  =  ======  ========  =======

Each of two warp groups has 64 x by 2 y. Its ``second`` stays in shared memory while it walks along
k, whose ``first`` and ``third`` the loader brings in a ring for both groups. The products of a k
with ``third`` and the first product of the next k are on their way together.
"""

from collections import namedtuple
from math import isqrt, prod
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_load, async_store, mma, mma_wait
from scalefold_kernels.gluon import ROWS, mma_layout, two_groups, widen, zeros
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.loads import load_vector
from scalefold_kernels.ops.outer_product.op import EPS, Factors, Mean, split_evenly
from scalefold_kernels.tma import tiles_of

GROUP_Y = gl.constexpr(2)
"""y of a warp group. Sizes of a tile follow; operands are no larger."""

SIZE_M = gl.constexpr(128)
SIZE_N = gl.constexpr(128)
SIZE_D = gl.constexpr(32)
PART_M = gl.constexpr(32)

Cta = namedtuple(
    "Cta",
    "out_desc second_ptr out_ptrs count_ptr bias_ptr rings second_tiles z chains count_x count_y "
    "MEAN EPS",
)


@gluon.jit
def both_chains(sizes, strides, tilings):
    """Sizes, strides of ``second`` along y, m, d, and tiling; of two operands' gradients.

    What is x for the one is k for the other, and y is d.
    """
    size_x, size_y, size_m, size_d, size_n, size_k = sizes
    stride_y, stride_m, stride_d = strides
    # What loops count with must be no constants.
    size_x, size_k = gl.to_tensor(size_x), gl.to_tensor(size_k)
    one = (size_x, size_y, size_m, size_d, size_n, size_k), strides, as_tensors(tilings[0])
    sizes = size_k, size_d, size_m, size_y, size_n, size_x
    other = sizes, (stride_d, stride_m, stride_y), as_tensors(tilings[1])
    return one, other


@gluon.jit
def as_tensors(tiling):
    """Tiles along x and y, parts of the sum over k, and k in a part."""
    num_x, num_y, num_parts, k_per_part = tiling
    return (
        gl.to_tensor(num_x), gl.to_tensor(num_y), gl.to_tensor(num_parts), gl.to_tensor(k_per_part),
    )  # fmt: skip


@gluon.jit
def num_tiles(chain):
    """Number of tiles of all parts."""
    _, _, tiling = chain
    num_x, num_y, num_parts, _ = tiling
    return num_x * num_y * num_parts


@gluon.jit
def place(tile, chain):
    """First x, first y, part of the sum over k of a tile; where that part begins, and its end."""
    sizes, _, tiling = chain
    num_x, num_y, _, k_per_part = tiling
    rest = tile // num_y
    part = rest // num_x
    start = part * k_per_part
    end = gl.minimum(start + k_per_part, sizes[5])
    return rest % num_x * ROWS, tile % num_y * 2 * GROUP_Y, part, start, end


@gluon.jit
def following_tile(tile, chain):
    """A CTA's first tile of the next chain, from that of this one; tiles are dealt out in order."""
    ctas = gl.num_programs(0)
    return (tile + ctas - num_tiles(chain) % ctas) % ctas


@gluon.jit
def load(cta):
    i, n = gl.to_tensor(0), gl.to_tensor(0)
    first_tile = gl.program_id(0)
    for which in gl.static_range(1 if cta.MEAN else 2):
        first, third = cta.rings[which]
        chain = cta.chains[which]
        for tile in range(first_tile, num_tiles(chain), gl.num_programs(0)):
            x, y, _, start, end = place(tile, chain)
            if cta.MEAN:
                for w in gl.static_range(2):
                    ring.load(cta.second_tiles, n, [y + w * GROUP_Y, 0, 0], w)
            for k in range(start, end):
                ring.load_pair(first, third, i, [k, x, 0], [0, k, 0] if cta.MEAN else [k, 0, 0])
                i += 1
            if cta.MEAN:
                for w in gl.static_range(2):
                    at = ring.wait_empty(cta.z, n, GROUP_Y * smem.tile_bytes(cta.z.desc), w)
                    ready = cta.z.full.index(at)
                    for part in gl.static_range(w * GROUP_Y, (w + 1) * GROUP_Y):
                        async_load(cta.z.desc, [x, y + part, 0], ready, cta.z.slots.index(part))
            n += 1
        first_tile = following_tile(first_tile, chain)


@gluon.jit
def keep_second(second_ptr, tile, y, chain, Y_FASTEST: gl.constexpr):
    """``second`` of a group's y into shared memory, as (m, y and d)."""
    ALONG_D: gl.constexpr = gl.BlockedLayout([1, 1, 8], [4, 2, 4], [4, 1, 1], [2, 1, 0])
    ALONG_Y: gl.constexpr = gl.BlockedLayout([1, 2, 1], [1, 1, 32], [4, 1, 1], [1, 2, 0])
    L: gl.constexpr = ALONG_Y if Y_FASTEST else ALONG_D
    OF_VECTOR_Y: gl.constexpr = 2 if Y_FASTEST else 1
    OF_VECTOR_D: gl.constexpr = 1 if Y_FASTEST else 8
    sizes, strides, _ = chain
    _, size_y, size_m, size_d, _, _ = sizes
    stride_y, stride_m, stride_d = strides
    OF_M: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, L))
    OF_Y: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, L))
    OF_D: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, L))
    y += gl.arange(0, GROUP_Y, layout=OF_Y)[None, :, None]
    d = gl.arange(0, SIZE_D, layout=OF_D)[None, None, :]
    for part in gl.static_range(0, SIZE_M, PART_M):  # all at once would spill registers
        m = part + gl.arange(0, PART_M, layout=OF_M)[:, None, None]
        at = second_ptr + (m * stride_m + y * stride_y + d * stride_d)
        # A warp group does not know what the launch says of its arguments' alignment.
        vectors = gl.multiple_of(at, [1, 2 * OF_VECTOR_Y, 2 * OF_VECTOR_D])
        vectors = gl.max_contiguous(vectors, [1, OF_VECTOR_Y, OF_VECTOR_D])
        inside = (m < size_m) & (y < size_y) & (d < size_d)
        inside = gl.max_constancy(inside, [1, OF_VECTOR_Y, OF_VECTOR_D])
        values = gl.load(vectors, mask=inside, other=0.0)
        rows = tile.slice(part, PART_M, dim=0)
        rows.store(values.reshape([PART_M, GROUP_Y * SIZE_D]))
    fence_async_shared()


@gluon.jit
def multiply_inner(inner, third_smem, slot, left_out, right_out, MEAN: gl.constexpr):
    """Start both y's products of the inner product with ``third``."""
    A: gl.constexpr = gl.DotOperandLayout(0, mma_layout(SIZE_N), 2)
    L: gl.constexpr = mma_layout(SIZE_D)
    both = inner.to(third_smem.dtype).reshape([ROWS, GROUP_Y, SIZE_D]).permute((0, 2, 1))
    left, right = gl.split(both)
    left = gl.convert_layout(gl.convert_layout(left, L), A)
    right = gl.convert_layout(gl.convert_layout(right, L), A)
    if MEAN:
        third = third_smem.index(slot).reshape([SIZE_N, SIZE_D]).permute((1, 0))
    else:
        third = third_smem.index(slot).reshape([SIZE_D, SIZE_N])
    left_out = mma(left, third, left_out, is_async=True)
    right_out = mma(right, third, right_out, is_async=True)
    return left_out, right_out


@gluon.jit
def write_mean(total, tile, x, y, sizes, cta):
    """``z + (total + bias) / count``, z in the tile, to memory."""
    L: gl.constexpr = mma_layout(SIZE_N)
    size_x, size_y, _, _, size_n, _ = sizes
    row = x + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
    n = gl.arange(0, SIZE_N, layout=gl.SliceLayout(0, L))
    at = row * cta.count_x + y * cta.count_y
    inside = (row < size_x) & (y < size_y)
    count = gl.load(cta.count_ptr + at, mask=inside, other=1.0).to(gl.float32)
    total += load_vector(cta.bias_ptr, n, size_n)[None, :]
    flat = tile.reshape([ROWS, SIZE_N])
    flat.store((widen(flat.load(L)) + total / (count + cta.EPS)[:, None]).to(tile.dtype))
    fence_async_shared()
    async_store(cta.out_desc, [x, y, 0], tile)


@gluon.jit
def write_part(total, out_ptr, x, y, part, chain):
    """A part of a sum over k, to memory, as (x, y, n)."""
    L: gl.constexpr = mma_layout(SIZE_N)
    sizes, _, _ = chain
    size_x, size_y, _, _, size_n, _ = sizes
    row = x + gl.arange(0, ROWS, layout=gl.SliceLayout(1, L))
    n = gl.arange(0, SIZE_N, layout=gl.SliceLayout(0, L))
    at = ((part.to(gl.int64) * size_x + row) * size_y + y) * size_n
    inside = ((row < size_x) & (y < size_y))[:, None] & (n < size_n)[None, :]
    gl.store(out_ptr + at[:, None] + n[None, :], total, mask=inside)


@gluon.jit
def compute(w: gl.constexpr, cta):
    zero = zeros(ROWS, GROUP_Y * SIZE_D)
    i, n = gl.to_tensor(0), gl.to_tensor(0)
    first_tile = gl.program_id(0)
    for which in gl.static_range(1 if cta.MEAN else 2):
        first, third = cta.rings[which]
        chain = cta.chains[which]
        sizes = chain[0]
        for tile in range(first_tile, num_tiles(chain), gl.num_programs(0)):
            x, y, part, start, end = place(tile, chain)
            y += w * GROUP_Y
            if cta.MEAN:
                at = ring.wait_full(cta.second_tiles, n, w)
                second_tile = cta.second_tiles.slots.index(at).reshape([GROUP_Y * SIZE_D, SIZE_M])
                second_tile = second_tile.permute((1, 0))
            else:
                second_tile = cta.second_tiles.index(w)
                keep_second(cta.second_ptr, second_tile, y, chain, which == 1)
            left = zeros(ROWS, SIZE_N)
            right = left
            slot = ring.wait_full(first, i)
            rows = first.slots.index(slot).reshape([ROWS, SIZE_M])
            inner = mma(rows, second_tile, zero, use_acc=False)
            if cta.MEAN:
                if n > 0:
                    tma.store_wait(0)  # the last tile's result
                    mbarrier.arrive(cta.z.empty.index(w))
            for _ in range(start + 1, end):
                left, right = multiply_inner(inner, third.slots, slot, left, right, cta.MEAN)
                i += 1
                following = ring.wait_full(first, i)
                rows = first.slots.index(following).reshape([ROWS, SIZE_M])
                inner = mma(rows, second_tile, zero, use_acc=False, is_async=True)
                # Within the iteration: across iterations, ptxas (12.8) would wait after each step.
                left, right, inner = mma_wait(0, [left, right, inner])
                mbarrier.arrive(first.empty.index(slot))
                slot = following
            left, right = multiply_inner(inner, third.slots, slot, left, right, cta.MEAN)
            left, right = mma_wait(0, [left, right])
            mbarrier.arrive(first.empty.index(slot))
            i += 1
            if cta.MEAN:
                mbarrier.arrive(cta.second_tiles.empty.index(at))
                ring.wait_full(cta.z, n, w)
                write_mean(left, cta.z.slots.index(w * GROUP_Y), x, y, sizes, cta)
                write_mean(right, cta.z.slots.index(w * GROUP_Y + 1), x, y + 1, sizes, cta)
            else:
                write_part(left, cta.out_ptrs[which], x, y, part, chain)
                write_part(right, cta.out_ptrs[which], x, y + 1, part, chain)
            n += 1
        first_tile = following_tile(first_tile, chain)
    if cta.MEAN:
        tma.store_wait(0)


@gluon.jit
def outer_product_chained_hopper_kernel(
    first_desc, third_desc, other_first_desc, other_third_desc, second_desc, z_desc, out_desc,
    second_ptr, out_ptr, other_out_ptr, count_ptr, bias_ptr, sizes, second_strides, tiling,
    other_tiling, count_strides, EPS: gl.constexpr, MEAN: gl.constexpr, STAGES: gl.constexpr,
    GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module. With ``MEAN`` (forward) bias, count and z take part.

    Without, ``out`` and ``other_out`` have partial sums in float32, (part, x, y, n), of the first
    and the second operand's gradient; ``out_desc``, ``second_desc``, ``z_desc``, ``count`` and
    ``bias`` are unused; ``third_desc`` is (k, d, n) then, else (n, k, d). ``sizes``: of x, y, m, d,
    n, k.
    """
    first = ring.new(first_desc, STAGES, 2)
    third = ring.along(first, third_desc, STAGES)
    # No barrier without a wait: its memory is reused, see `smem`.
    if MEAN:
        second_tiles = ring.new(second_desc, 4, 1)
        z = ring.barriers(2, 1)
        z = ring.Ring(z_desc, smem.tiles(z_desc, 2 * GROUP_Y), z.full, z.empty)
    else:
        second_tiles, z = smem.matrices(2, SIZE_M, GROUP_Y * SIZE_D), first
    other_rings = ring.beside(first, other_first_desc), ring.beside(third, other_third_desc)
    chains = both_chains(sizes, second_strides, (tiling, other_tiling))
    count_x, count_y = count_strides
    two_groups(Cta(
        out_desc, second_ptr, (out_ptr, other_out_ptr), count_ptr, bias_ptr,
        ((first, third), other_rings), second_tiles, z, chains, count_x, count_y, MEAN, EPS,
    ), compute, load, GROUP_REGISTERS)  # fmt: skip


class Chain(NamedTuple):
    """What two products in a chain are made of."""

    first: Tensor  # (K, X, M)
    second: Tensor  # (Y, M, D)
    third: Tensor  # (K, D, N)


def mean_products(factors: Factors, mean: Mean) -> None:
    """Fill the forward's result."""
    a_ICS, b_JCS, weight = factors
    weight_CDZ = _by_channels(weight).permute(1, 2, 0)
    chain = Chain(a_ICS.transpose(0, 1), b_JCS.transpose(1, 2), weight_CDZ)
    first_KXM, second_YMD, third_KDN = chain
    first = tiles_of(first_KXM, 1, ROWS.value, SIZE_M.value)
    third = tiles_of(third_KDN.permute(2, 0, 1), SIZE_N.value, 1, SIZE_D.value)
    whole = ROWS.value, 1, SIZE_N.value
    tiling = *_num_blocks(chain), 1, len(first_KXM)
    outer_product_chained_hopper_kernel[(min(prod(_num_blocks(chain)), num_sms(mean.out.device)),)](
        first, third, first, third,
        tiles_of(second_YMD.transpose(1, 2), GROUP_Y.value, SIZE_D.value, SIZE_M.value),
        tiles_of(mean.z, *whole), tiles_of(mean.out, *whole), second_YMD, mean.out, mean.out,
        mean.number, mean.bias, _shape(chain), second_YMD.stride(), tiling, tiling,
        mean.number.stride(),
        EPS=EPS, MEAN=True, **factors.config("outer_product_chained_hopper"),
    )  # fmt: skip


def operand_gradients(grad_IJZ: Tensor, factors: Factors) -> list[Tensor]:
    """Partial sums over k, (parts, X, Y, N), float32; what is x for one is k for the other."""
    a_ICS, b_JCS, weight = factors
    weight_ZCD = _by_channels(weight)
    chains = (
        Chain(grad_IJZ.transpose(0, 1), weight_ZCD.transpose(0, 1), b_JCS),
        Chain(grad_IJZ, weight_ZCD.permute(2, 0, 1), a_ICS),
    )
    device = grad_IJZ.device
    num_blocks = [_num_blocks(chain) for chain in chains]
    ctas = sum(map(prod, num_blocks))
    parts_of = [split_evenly(ctas, 1, len(chain.first), device) for chain in chains]
    tilings = [(*n, *split) for n, split in zip(num_blocks, parts_of, strict=True)]
    num_tiles = sum(num_x * num_y * num_parts for num_x, num_y, num_parts, _ in tilings)
    shapes = [
        (num_parts, chain.first.shape[1], len(chain.second), chain.third.shape[2])
        for chain, (num_parts, _) in zip(chains, parts_of, strict=True)
    ]
    parts = [torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes]
    # Unused without MEAN, but descriptors may not be None, and their blocks must have this shape.
    unused = tiles_of(chains[0].first, ROWS.value, 1, SIZE_N.value)
    outer_product_chained_hopper_kernel[(min(num_tiles, num_sms(device)),)](
        tiles_of(chains[0].first, 1, ROWS.value, SIZE_M.value),
        tiles_of(chains[0].third, 1, SIZE_D.value, SIZE_N.value),
        tiles_of(chains[1].first, 1, ROWS.value, SIZE_M.value),
        tiles_of(chains[1].third, 1, SIZE_D.value, SIZE_N.value), unused, unused, unused,
        chains[0].second, *parts, parts[0], parts[0], _shape(chains[0]), chains[0].second.stride(),
        *tilings, (0, 0),
        EPS=EPS, MEAN=False, **factors.config("outer_product_chained_hopper"),
    )  # fmt: skip
    return parts


def _num_blocks(chain: Chain) -> tuple[int, int]:
    """Number of blocks along x and along y."""
    size_x, size_y = chain.first.shape[1], len(chain.second)
    return triton.cdiv(size_x, ROWS.value), triton.cdiv(size_y, (2 * GROUP_Y.value))


def _shape(chain: Chain) -> tuple[int, ...]:
    """Sizes of x, y, m, d, n, k."""
    num_k, size_x, _ = chain.first.shape
    return size_x, *chain.second.shape, chain.third.shape[2], num_k


def _by_channels(weight: Tensor) -> Tensor:
    """The weight as (Z, C, C)."""
    channels = isqrt(weight.shape[1])
    return weight.unflatten(1, (channels, channels))
