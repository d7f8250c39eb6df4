"""First kernel of the backward: the hidden channels' gradient, and both weights'; see `parts`.

A CTA keeps some hidden channels of both weights; the loader brings its part of the rows in a ring.
Warp group 0 makes the hidden channels again and ``hidden^T grad``. Group 1 waits for these channels
(ring ``hidden``), makes their gradient and ``grad_hidden^T normed``. Both make them transposed,
(hidden channels, rows): so they are left operands of the sums over rows from registers.
"""

from collections import namedtuple
from functools import partial

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from scalefold_kernels import ring, smem
from scalefold_kernels.compiler import async_load, async_store, mma, mma_wait
from scalefold_kernels.gluon import ROWS, mma_layout, two_groups, zeros
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.loads import load_vector
from scalefold_kernels.ops.transition.hopper import parts
from scalefold_kernels.ops.transition.hopper.parts import DEPTH, relu
from scalefold_kernels.ops.transition.op import Parameters, config_of
from scalefold_kernels.smem import SUMS
from scalefold_kernels.tma import tiles_of

Cta = namedtuple(
    "Cta",
    "grad_hidden_desc out_ptr sums_ptr up down normed grad hidden_smem hidden out_tile ones "
    "weights_full num_rows rows_per_part up_desc down_desc up_bias_ptr C H BLOCK_C BLOCK_H",
)


@gluon.jit
def load(cta):
    h = gl.program_id(0) * cta.BLOCK_H
    mbarrier.expect(cta.weights_full, smem.tile_bytes(cta.up_desc, cta.down_desc))
    async_load(cta.up_desc, [h, 0], cta.weights_full, cta.up)
    async_load(cta.down_desc, [0, h], cta.weights_full, cta.down)
    start = gl.program_id(1) * cta.rows_per_part
    i = gl.to_tensor(0)
    for row in range(start, gl.minimum(start + cta.rows_per_part, cta.num_rows), ROWS):
        ring.load_pair(cta.normed, cta.grad, i, [row, 0], [row, 0])
        i += 1


@gluon.jit
def relu_backward(grad, out):
    """``grad`` to bfloat16, and 0 where ``out`` of the ReLU is."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 g, m, zero;
        mov.b32 zero, 0;
        cvt.rn.bf16x2.f32 g, $2, $1;
        set.gt.bf16x2.bf16x2 m, $3, zero;
        mul.rn.bf16x2 $0, g, m;
        }""",
        "=r,f,f,r", [grad, out], gl.bfloat16, True, 2,
    )  # fmt: skip


@gluon.jit
def write_product(product, out_ptr, part, first, C: gl.constexpr, H: gl.constexpr):
    """Part of a sum over rows, of the H's from ``first`` and all C, to (parts, H, C)."""
    L: gl.constexpr = product.type.layout
    h = first + gl.arange(0, product.shape[0], layout=gl.SliceLayout(1, L))
    c = gl.arange(0, product.shape[1], layout=gl.SliceLayout(0, L))
    at = (part.to(gl.int64) * H + h)[:, None] * C + c[None, :]
    gl.store(out_ptr + at, product, mask=(h < H)[:, None] & (c < C)[None, :])


@gluon.jit
def multiply(weights, rows, i):
    """Weights by the ring's next rows, transposed: (hidden channels, rows); with their slot."""
    zero = zeros(weights.shape[0], ROWS)
    slot = ring.wait_full(rows, i)
    rows_t = rows.slots.index(slot).permute((1, 0))
    return mma_wait(0, [mma(weights, rows_t, zero, use_acc=False, is_async=True)]), slot


@gluon.jit
def compute_hidden(cta):
    """The first warp group."""
    L: gl.constexpr = mma_layout(cta.BLOCK_C)
    A: gl.constexpr = gl.DotOperandLayout(0, L, 2)
    first, part = gl.program_id(0) * cta.BLOCK_H, gl.program_id(1)
    start = part * cta.rows_per_part
    h = first + gl.arange(0, cta.BLOCK_H, layout=gl.SliceLayout(1, mma_layout(ROWS)))
    bias = load_vector(cta.up_bias_ptr, h, cta.H)[:, None]
    product = zeros(cta.BLOCK_H, cta.BLOCK_C)
    mbarrier.wait(cta.weights_full, 0)
    i = gl.to_tensor(0)
    for _ in range(start, gl.minimum(start + cta.rows_per_part, cta.num_rows), ROWS):
        hidden, slot = multiply(cta.up, cta.normed, i)
        hidden = relu(hidden + bias)
        left = gl.convert_layout(hidden, A)
        product = mma(left, cta.grad.slots.index(slot), product, is_async=True)
        mbarrier.wait(cta.hidden.empty.index(i & 1), ring.phase(cta.hidden, i) ^ 1)
        cta.hidden_smem.index(i & 1).store(hidden)
        mbarrier.arrive(cta.hidden.full.index(i & 1))
        product = mma_wait(0, [product])
        mbarrier.arrive(cta.normed.empty.index(slot))
        i += 1
    write_product(product, cta.out_ptr, gl.num_programs(1) + part, first, cta.C, cta.H)


@gluon.jit
def compute_gradient(cta):
    """The second warp group."""
    L: gl.constexpr = mma_layout(cta.BLOCK_C)
    A: gl.constexpr = gl.DotOperandLayout(0, L, 2)
    first, part = gl.program_id(0) * cta.BLOCK_H, gl.program_id(1)
    start = part * cta.rows_per_part
    product = zeros(cta.BLOCK_H, cta.BLOCK_C)
    total = zeros(cta.BLOCK_H, SUMS)
    down_t = cta.down.permute((1, 0))
    mbarrier.wait(cta.weights_full, 0)
    i = gl.to_tensor(0)
    for row in range(start, gl.minimum(start + cta.rows_per_part, cta.num_rows), ROWS):
        grad_hidden, slot = multiply(down_t, cta.grad, i)
        mbarrier.wait(cta.hidden.full.index(i & 1), ring.phase(cta.hidden, i))
        grad16 = relu_backward(grad_hidden, cta.hidden_smem.index(i & 1).load(mma_layout(ROWS)))
        mbarrier.arrive(cta.hidden.empty.index(i & 1))
        left = gl.convert_layout(grad16, A)
        product = mma(left, cta.normed.slots.index(slot), product, is_async=True)
        total = mma(left, cta.ones, total, is_async=True)
        tma.store_wait(0)
        cta.out_tile.store(grad16)
        fence_async_shared()
        for h in gl.static_range(0, cta.BLOCK_H, ROWS):
            at = [parts.piece_row(row, first + h, cta.H), 0]
            async_store(cta.grad_hidden_desc, at, cta.out_tile.slice(h, ROWS, dim=0))
        product, total = mma_wait(0, [product, total])
        mbarrier.arrive(cta.normed.empty.index(slot))
        i += 1
    write_product(product, cta.out_ptr, part, first, cta.C, cta.H)
    write_product(total, cta.sums_ptr, part, first, 1, cta.H)
    tma.store_wait(0)


@gluon.jit
def compute(w: gl.constexpr, cta):
    if w == 0:
        compute_hidden(cta)
    else:
        compute_gradient(cta)


@gluon.jit
def transition_gradients_hopper_kernel(
    normed_desc, grad_desc, up_desc, down_desc, grad_hidden_desc, up_bias_ptr, out_ptr, sums_ptr,
    num_rows, rows_per_part, C: gl.constexpr, H: gl.constexpr, BLOCK_C: gl.constexpr,
    BLOCK_H: gl.constexpr, STAGES: gl.constexpr, GROUP_REGISTERS: gl.constexpr,
):  # fmt: skip
    """See the module. ``out`` (2, parts, H, C), ``sums`` (parts, H), over a part's rows each."""
    dtype: gl.constexpr = normed_desc.dtype
    ones = parts.new_columns(1).index(0)
    up, down = smem.tile(up_desc), smem.tile(down_desc)
    normed = ring.new(normed_desc, STAGES, 2)
    grad = ring.along(normed, grad_desc, STAGES)
    hidden_smem = gl.allocate_shared_memory(dtype, [2, BLOCK_H, ROWS], grad_hidden_desc.layout)
    out_tile = gl.allocate_shared_memory(dtype, [BLOCK_H, ROWS], grad_hidden_desc.layout)
    two_groups(Cta(
        grad_hidden_desc, out_ptr, sums_ptr, up, down, normed, grad, hidden_smem,
        ring.barriers(2, 1), out_tile, ones, smem.barrier(), gl.to_tensor(num_rows),
        gl.to_tensor(rows_per_part), up_desc, down_desc, up_bias_ptr, C, H, BLOCK_C, BLOCK_H,
    ), compute, load, GROUP_REGISTERS)  # fmt: skip


def gradients(
    normed_RC: Tensor, grad_RC: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor]:
    """The hidden channels' gradient, and partial sums over rows, float32.

    Returns
    -------
    grad_hidden : Tensor
        Stored in pieces, see `parts.piece_row`; for whole tiles of rows.
    products : Tensor, shape (2, parts, H, C)
        ``grad_hidden^T normed`` and ``hidden^T grad``.
    sums : Tensor, shape (parts, H)
        Partial sums over rows of ``grad_hidden``.
    """
    (num_rows, channels), num_hidden = grad_RC.shape, parameters.up_weight.shape[0]
    config = config_of("transition_gradients_hopper", grad_RC, num_hidden, "sm_90")
    width, block = parts.width_of(channels), config["BLOCK_H"]
    # Whole tiles of the next kernel: zeros beyond the last row, for its sums.
    num_rows = 2 * ROWS.value * triton.cdiv(num_rows, 2 * ROWS.value)
    num_pieces = num_rows // ROWS.value * 2 * triton.cdiv(num_hidden, 2 * DEPTH.value)
    grad_hidden = grad_RC.new_empty(num_pieces * ROWS.value, DEPTH.value)
    # As many parts as fill the GPU once.
    blocks = triton.cdiv(num_hidden, block)
    wanted = max(1, num_sms(grad_RC.device) // blocks)
    rows_per_part = ROWS.value * triton.cdiv(triton.cdiv(num_rows, wanted), ROWS.value)
    num_parts = triton.cdiv(num_rows, rows_per_part)
    new = partial(torch.empty, dtype=torch.float32, device=grad_RC.device)
    products, sums = new(2, num_parts, num_hidden, channels), new(num_parts, num_hidden)
    transition_gradients_hopper_kernel[(blocks, num_parts)](
        tiles_of(normed_RC, ROWS.value, width), tiles_of(grad_RC, ROWS.value, width),
        tiles_of(parameters.up_weight, block, width),
        tiles_of(parameters.down_weight, width, block),
        tiles_of(grad_hidden, ROWS.value, DEPTH.value), parameters.up_bias, products, sums,
        num_rows, rows_per_part,
        C=channels, H=num_hidden, BLOCK_C=width, **config,
    )  # fmt: skip
    return grad_hidden, products, sums
