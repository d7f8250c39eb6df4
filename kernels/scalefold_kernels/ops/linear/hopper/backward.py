"""Backward of the residual linear map on Hopper GPUs: all gradients in one pass.

A CTA keeps the weights of its inputs; the loader brings 64 rows of the result's gradient and of
``h`` at a time, in a ring. Two warp groups share a tile: each drops out its half of the outputs in
place, waits for the other half (``dropped``), makes half of the inputs' gradient, and sums that of
its half of the weights' rows in registers until the last tile. Products with ones sum the bias's.
What is kept is scaled after the products. Legend: as `linear.triton`.
"""

from collections import namedtuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_store, mma, mma_wait
from scalefold_kernels.dropout.kernel import kept, mix
from scalefold_kernels.gluon import ROWS, mma_layout, two_groups, zeros
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.ops.linear.hopper import parts
from scalefold_kernels.ops.linear.op import Call
from scalefold_kernels.smem import SUMS
from scalefold_kernels.sums import sum_rows
from scalefold_kernels.tma import padded, tiles_of

PART = gl.constexpr(32)
"""Outputs whose dropout mask is applied at a time."""

Cta = namedtuple(
    "Cta",
    "grad_h_desc partial_ptr key_ptr layer threshold scale key_stride grad h weight_desc weight "
    "weight_full ones mask_smem out_smem dropped order C K SHARED BLOCK_K BLOCK_C COLUMN_BLOCKS",
)


@gluon.jit
def masked(x, mask):
    """Elements of x where the mask's bits are set, else 0."""
    return gl.inline_asm_elementwise("and.b32 $0, $1, $2;", "=r,r,r", [x, mask], x.dtype, True, 2)


@gluon.jit
def load(cta):
    column = (gl.program_id(0) % cta.COLUMN_BLOCKS) * cta.BLOCK_K
    sample, first, first_tile = parts.start(cta, gl.program_id(0) // cta.COLUMN_BLOCKS)
    smem.load(cta.weight_desc, [0, column], cta.weight_full, cta.weight)
    n = gl.to_tensor(0)
    for tile in range(first_tile, cta.order.num_tiles, cta.order.groups):
        at = parts.line_of(cta, sample, tile)
        ring.load_pair(cta.grad, cta.h, n, [at, first, 0], [at, first, column])
        n += 1


@gluon.jit
def compute(w: gl.constexpr, cta):
    HALF_C: gl.constexpr = cta.BLOCK_C // 2
    HALF_K: gl.constexpr = cta.BLOCK_K // 2
    SUM: gl.constexpr = mma_layout(cta.BLOCK_K)
    BIAS: gl.constexpr = mma_layout(SUMS)
    L: gl.constexpr = mma_layout(PART)
    FLAT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    column = (gl.program_id(0) % cta.COLUMN_BLOCKS) * cta.BLOCK_K
    number = gl.program_id(0) // cta.COLUMN_BLOCKS
    sample, first, first_tile = parts.start(cta, number)
    if cta.SHARED > 0:
        state = mix(mix(gl.load(cta.key_ptr + sample * cta.key_stride), gl.to_tensor(0)), cta.layer)
    if cta.SHARED == 1:
        mask_tile = cta.mask_smem.index(w)
        parts.hash_positions(mask_tile, state, first, w * HALF_C, cta.threshold)
    zero = zeros(ROWS, HALF_K)
    weight_sum = zeros(HALF_C, cta.BLOCK_K)
    bias_sum = zeros(HALF_C, SUMS)
    out_tile = cta.out_smem.index(w)
    weight = cta.weight.slice(w * HALF_K, HALF_K, dim=1)
    n = gl.to_tensor(0)
    for tile in range(first_tile, cta.order.num_tiles, cta.order.groups):
        # In each iteration: else the barrier's memory is reused, see `smem`.
        mbarrier.wait(cta.weight_full, 0)
        slot = ring.wait_full(cta.grad, n)
        grad_tile = cta.grad.slots.index(slot)
        half = grad_tile.slice(w * HALF_C, HALF_C, dim=1)
        if cta.SHARED > 0:
            for part in gl.static_range(HALF_C // PART):
                piece = half.slice(part * PART, PART, dim=1)
                if cta.SHARED == 1:
                    mask = parts.load_mask(mask_tile.slice(part * PART, PART, dim=1))
                else:
                    c = w * HALF_C + part * PART + gl.arange(0, PART, layout=FLAT)
                    hashes = mix(mix(mix(state, tile), gl.to_tensor(0)), c)
                    of_line = -kept(hashes, cta.threshold).to(gl.int16)
                    of_line = gl.convert_layout(of_line, gl.SliceLayout(0, L))
                    mask = of_line[None, :].broadcast_to(ROWS, PART)
                piece.store(masked(piece.load(L), mask))
            fence_async_shared()
            # Both halves are dropped before either group multiplies with the whole.
            mbarrier.arrive(cta.dropped.index(slot))
            mbarrier.wait(cta.dropped.index(slot), ring.phase(cta.grad, n))
        grad_h = mma(grad_tile, weight, zero, use_acc=False, is_async=True)
        transposed = half.permute((1, 0))
        bias_sum = mma(transposed, cta.ones, bias_sum, is_async=True)
        weight_sum = mma(transposed, cta.h.slots.index(slot), weight_sum, is_async=True)
        grad_h = mma_wait(2, [grad_h])
        if cta.SHARED > 0:
            grad_h *= cta.scale
        # The gradient of the tile before has left.
        tma.store_wait(0)
        out_tile.store(grad_h.to(out_tile.dtype))
        fence_async_shared()
        at = [parts.line_of(cta, sample, tile), first, column + w * HALF_K]
        async_store(cta.grad_h_desc, at, smem.as_described(out_tile, cta.grad_h_desc))
        bias_sum, weight_sum = mma_wait(0, [bias_sum, weight_sum])
        mbarrier.arrive(cta.grad.empty.index(slot))
        n += 1
    if cta.SHARED > 0:
        weight_sum *= cta.scale
        bias_sum *= cta.scale
    partial = cta.partial_ptr + number.to(gl.int64) * (cta.C * cta.K + cta.C)
    c = w * HALF_C + gl.arange(0, HALF_C, layout=gl.SliceLayout(1, SUM))
    k = column + gl.arange(0, cta.BLOCK_K, layout=gl.SliceLayout(0, SUM))
    inside = (c < cta.C)[:, None] & (k < cta.K)[None, :]
    gl.store(partial + c[:, None] * cta.K + k[None, :], weight_sum, mask=inside)
    c = w * HALF_C + gl.arange(0, HALF_C, layout=gl.SliceLayout(1, BIAS))
    one = gl.arange(0, SUMS, layout=gl.SliceLayout(0, BIAS)) + column
    inside = (c < cta.C)[:, None] & (one == 0)[None, :]
    gl.store(partial + cta.C * cta.K + c[:, None] + one[None, :], bias_sum, mask=inside)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["layer"])
def residual_linear_backward_hopper_kernel(
    grad_desc, h_desc, weight_desc, grad_h_desc, partial_ptr, key_ptr, layer, threshold, scale,
    key_stride, order, C: gl.constexpr, K: gl.constexpr, SHARED: gl.constexpr,
    BLOCK_K: gl.constexpr, BLOCK_C: gl.constexpr, COLUMN_BLOCKS: gl.constexpr, STAGES: gl.constexpr,
    GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """As `linear.triton.residual_linear_backward_kernel`; see the module.

    ``order`` is a `Order`, whose groups of lines have a CTA each.
    """
    bits_layout: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    ones = smem.ones().index(0)
    grad = ring.of_slots(grad_desc, smem.matrices(STAGES, ROWS, BLOCK_C), 2)
    h = ring.Ring(h_desc, smem.matrices(STAGES, ROWS, BLOCK_K), grad.full, grad.empty)
    mask_shape: gl.constexpr = [2, 8 if SHARED == 1 else 1, BLOCK_C // 2]
    mask_smem = gl.allocate_shared_memory(gl.int16, mask_shape, bits_layout)
    out_smem = smem.matrices(2, ROWS, BLOCK_K // 2)
    dropped = smem.barriers(STAGES, 2) if SHARED > 0 else grad.full
    two_groups(Cta(
        grad_h_desc, partial_ptr, key_ptr, gl.to_tensor(layer), gl.to_tensor(threshold),
        gl.to_tensor(scale), gl.to_tensor(key_stride), grad, h, weight_desc, smem.tile(weight_desc),
        smem.barrier(), ones, mask_smem, out_smem, dropped, parts.tensors(order),
        C, K, SHARED, BLOCK_K, BLOCK_C, COLUMN_BLOCKS,
    ), compute, load, GROUP_REGISTERS)  # fmt: skip


def backward(
    grad: Tensor, h: Tensor, weight: Tensor, call: Call, grad_h: Tensor, flat_grad: Tensor
) -> None:
    channels, inputs = weight.shape
    config = call.config("residual_linear_backward_hopper", "sm_90")
    width, block = padded(channels), config["BLOCK_K"]
    columns = triton.cdiv(inputs, block)
    order = parts.Order.of(call, max(1, num_sms(grad.device) // columns))
    ctas = order.blocks * order.groups
    partial = flat_grad.new_empty(ctas, flat_grad.numel(), dtype=torch.float32)
    residual_linear_backward_hopper_kernel[(columns * ctas,)](
        parts.boxes_of(grad, call, width), parts.boxes_of(h, call, block),
        tiles_of(weight, width, block), parts.boxes_of(grad_h, call, block // 2), partial,
        *call.hashing, call.key_stride, tuple(order),
        C=channels, K=inputs, SHARED=call.shared, BLOCK_C=width, COLUMN_BLOCKS=columns, **config,
    )  # fmt: skip
    sum_rows(partial, flat_grad.dtype, flat_grad)
