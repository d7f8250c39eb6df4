"""How kernels for Hopper GPUs are launched: dealt out to the SMs, and given tensors for TMA."""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.gpu import SM_REGISTERS, num_sms
from scalefold_kernels.ops.attention.arguments import Call, in_memory, transposed
from scalefold_kernels.tma import VECTOR, padded, reachable, tiles_of

SHARED_BYTES = 228 * 1024
"""Shared memory of an SM."""

RESERVED_BYTES = 1024 + 256
"""Shared memory of a CTA that the system, barriers and alignment take."""

THREADS = 128
"""Threads of a warp group. Triton reserves a whole group's registers for a loader warp, too."""


def dealt(call: Call, blocks: int, ctas_an_sm: int, unit: int = 1) -> tuple[int, int]:
    """Number of CTAs: as many as fill the GPU once, where there are enough rows for them.

    Parameters
    ----------
    call : Call
    blocks : int
        Blocks of a row and head; a CTA has one of them.
    ctas_an_sm : int
        How many of them an SM holds at a time.
    unit : int
        The number of CTAs on the GPU is a multiple of this.

    Returns
    -------
    int, int
        CTAs of one sample, to which `parts.place_of_cta` deals out the rows; the fewest of them
        that share a tile.
    """
    tiles = blocks * call.num_heads
    together = num_sms(call.q.device) * ctas_an_sm // call.batch // unit * unit
    count = min(tiles * call.num_rows, max(tiles, together))
    return count, count // tiles


def fitting(shared_bytes: int, warp_groups: int, maxnreg: int) -> int:
    """How many CTAs an SM holds at a time."""
    needed = shared_bytes + RESERVED_BYTES
    return min(SHARED_BYTES // needed, SM_REGISTERS // (THREADS * warp_groups * maxnreg))


def in_blocks(call: Call, config: dict[str, int], blocks: int) -> dict[str, int]:
    """A configuration, and what follows from the number of blocks in a row.

    Slots of a ring are as many as divide this number, so that each block has its own.
    """
    stages = max(n for n in range(1, config["STAGES"] + 1) if blocks % n == 0)
    return config | {"NUM_BLOCKS": blocks, "STAGES": stages, "C": padded(call.channels)}


def key_slots(call: Call, block: int) -> int:
    """Elements of a row's mask in shared memory."""
    return max(block, triton.next_power_of_2(call.num_keys))


def bias_rows(bias: Tensor) -> Tensor:
    """The bias as TMA reads it: keys or queries contiguous, in 16-byte steps."""
    rows = in_memory(bias)
    if reachable(rows):
        return bias
    *others, columns = rows.shape
    copy = rows.new_empty((*others, -(-columns // VECTOR) * VECTOR))[..., :columns]
    copy.copy_(rows)
    return copy.mT if transposed(bias) else copy


def gradient_rows(grad_out: Tensor) -> Tensor:
    """The gradient of the output as TMA reads it, heads one after the other."""
    dense = reachable(grad_out) and grad_out.stride(3) == grad_out.shape[4]
    return grad_out if dense else grad_out.clone(memory_format=torch.contiguous_format)


def rows(x: Tensor, block: int) -> TensorDescriptor:
    """Tiles (block positions, channels) of a tensor (B, R, N, H, C); zeros beyond its ends."""
    return tiles_of(x, 1, 1, block, 1, padded(x.shape[-1]))


def bias(bias: Tensor | None, stand_in: Tensor, block_q: int, block_k: int) -> TensorDescriptor:
    """Tiles of a bias (B, H, Q, K), in the order of its memory."""
    x = stand_in[:, 0] if bias is None else bias
    if transposed(bias):
        return tiles_of(x.mT, 1, 1, block_k, block_q)
    return tiles_of(x, 1, 1, block_q, block_k)


def statistics(x: Tensor, block: int) -> TensorDescriptor:
    """Tiles (block positions) of a tensor (B, R, H, N) of float32."""
    return tiles_of(x, 1, 1, 1, block)
