"""Forward of the residual linear map on Hopper GPUs; legend as `linear.triton`.

A CTA keeps the weights of its columns. The loader brings ``h`` and the residual in a ring each, 64
rows for each of two warp groups. A group gives ``h`` back after its product, and adds the update to
the residual in its place, which is given back when TMA has stored it. When lines share a mask, a
tile is eight positions of eight lines. A group stays at its positions, their mask in registers.
"""

from collections import namedtuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_store, mma
from scalefold_kernels.dropout.kernel import kept, mix
from scalefold_kernels.gluon import ROWS, mma_layout, two_groups, widen, zeros
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.loads import load_vector
from scalefold_kernels.ops.linear.hopper import parts
from scalefold_kernels.ops.linear.op import Call
from scalefold_kernels.tma import padded, tiles_of

Cta = namedtuple(
    "Cta",
    "out_desc bias_ptr key_ptr layer threshold scale key_stride h x weight_desc weight weight_full "
    "mask_smem order C SHARED BLOCK_C COLUMN_BLOCKS",
)


@gluon.jit
def start_of(w, cta):
    """`start` of a warp group, its tile past the end where it has none."""
    sample, first, tile = parts.start(cta, (gl.program_id(0) // cta.COLUMN_BLOCKS) * 2 + w)
    return sample, first, gl.where(tile < cta.order.groups, tile, cta.order.num_tiles)


@gluon.jit
def load(cta):
    column = (gl.program_id(0) % cta.COLUMN_BLOCKS) * cta.BLOCK_C
    smem.load(cta.weight_desc, [column, 0], cta.weight_full, cta.weight)
    sample0, first0, tile0 = start_of(0, cta)
    sample1, first1, tile1 = start_of(1, cta)
    n = gl.to_tensor(0)
    for tile in range(gl.minimum(tile0, tile1), cta.order.num_tiles, cta.order.groups):
        for w in gl.static_range(2):
            mine = tile + ((tile0 if w == 0 else tile1) - gl.minimum(tile0, tile1))
            if mine < cta.order.num_tiles:
                if w == 0:
                    at, first = parts.line_of(cta, sample0, mine), first0
                else:
                    at, first = parts.line_of(cta, sample1, mine), first1
                ring.load(cta.h, n, [at, first, 0], w)
                ring.load(cta.x, n, [at, first, column], w)
        n += 1


@gluon.jit
def compute(w, cta):
    OUT: gl.constexpr = mma_layout(cta.BLOCK_C)
    FLAT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    sample, first, first_tile = start_of(w, cta)
    column = (gl.program_id(0) % cta.COLUMN_BLOCKS) * cta.BLOCK_C
    c = column + gl.arange(0, cta.BLOCK_C, layout=gl.SliceLayout(0, OUT))
    bias = load_vector(cta.bias_ptr, c, cta.C)
    if cta.SHARED > 0:
        state = mix(mix(gl.load(cta.key_ptr + sample * cta.key_stride), gl.to_tensor(0)), cta.layer)
    if cta.SHARED == 1:
        parts.hash_positions(cta.mask_smem.index(w), state, first, column, cta.threshold)
        factor = gl.where(parts.load_mask(cta.mask_smem.index(w)) != 0, cta.scale, 0.0)
    zero = zeros(ROWS, cta.BLOCK_C)
    n = gl.to_tensor(0)
    for tile in range(first_tile, cta.order.num_tiles, cta.order.groups):
        # In each iteration: else the barrier's memory is reused, see `smem`.
        mbarrier.wait(cta.weight_full, 0)
        slot = ring.wait_full(cta.h, n, w)
        update = mma(cta.h.slots.index(slot), cta.weight.permute((1, 0)), zero, use_acc=False)
        mbarrier.arrive(cta.h.empty.index(slot))
        update += bias[None, :]
        if cta.SHARED == 1:
            update *= factor
        if cta.SHARED == 2:
            flat = column + gl.arange(0, cta.BLOCK_C, layout=FLAT)
            hashes = mix(mix(mix(state, tile), gl.to_tensor(0)), flat)
            of_line = gl.where(kept(hashes, cta.threshold), cta.scale, 0.0)
            update *= gl.convert_layout(of_line, gl.SliceLayout(0, OUT))[None, :]
        # The tile before has left: its slot may be filled.
        tma.store_wait(0)
        if n > 0:
            mbarrier.arrive(cta.x.empty.index(ring.slot(cta.x, n - 1, w)))
        x_tile = cta.x.slots.index(ring.wait_full(cta.x, n, w))
        x_tile.store((widen(x_tile.load(OUT)) + update).to(x_tile.dtype))
        fence_async_shared()
        at = [parts.line_of(cta, sample, tile), first, column]
        async_store(cta.out_desc, at, smem.as_described(x_tile, cta.out_desc))
        n += 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["layer"])
def residual_linear_forward_hopper_kernel(
    x_desc, h_desc, weight_desc, out_desc, bias_ptr, key_ptr, layer, threshold, scale, key_stride,
    order, C: gl.constexpr, SHARED: gl.constexpr, BLOCK_K: gl.constexpr, BLOCK_C: gl.constexpr,
    COLUMN_BLOCKS: gl.constexpr, H_STAGES: gl.constexpr, X_STAGES: gl.constexpr,
    GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """As `linear.triton.residual_linear_forward_kernel`; see the module.

    ``order`` is a `Order`, whose groups of lines have a warp group each.
    """
    bits_layout: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    h = ring.of_slots(h_desc, smem.matrices(2 * H_STAGES, ROWS, BLOCK_K), 1)
    x = ring.of_slots(x_desc, smem.matrices(2 * X_STAGES, ROWS, BLOCK_C), 1)
    mask_shape: gl.constexpr = [2, 8 if SHARED == 1 else 1, BLOCK_C]
    mask_smem = gl.allocate_shared_memory(gl.int8, mask_shape, bits_layout)
    two_groups(Cta(
        out_desc, bias_ptr, key_ptr, gl.to_tensor(layer), gl.to_tensor(threshold),
        gl.to_tensor(scale), gl.to_tensor(key_stride), h, x, weight_desc, smem.tile(weight_desc),
        smem.barrier(), mask_smem, parts.tensors(order), C, SHARED, BLOCK_C, COLUMN_BLOCKS,
    ), compute, load, GROUP_REGISTERS, gl.to_tensor(0), gl.to_tensor(1))  # fmt: skip


def forward(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, call: Call) -> Tensor:
    out = torch.empty_like(x)
    channels, inputs = weight.shape
    config = call.config("residual_linear_forward_hopper", "sm_90")
    width, block = padded(inputs), min(config.pop("BLOCK_C"), padded(channels))
    columns = triton.cdiv(channels, block)
    order = parts.Order.of(call, 2 * max(1, num_sms(x.device) // columns))
    residual_linear_forward_hopper_kernel[(columns * triton.cdiv(order.blocks * order.groups, 2),)](
        parts.boxes_of(x, call, block), parts.boxes_of(h, call, width),
        tiles_of(weight, block, width), parts.boxes_of(out, call, block), bias, *call.hashing,
        call.key_stride, tuple(order),
        C=channels, SHARED=call.shared, BLOCK_K=width, BLOCK_C=block, COLUMN_BLOCKS=columns,
        **config,
    )  # fmt: skip
    return out
