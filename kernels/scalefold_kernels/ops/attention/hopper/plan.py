"""How kernels for Hopper GPUs are dealt out to the SMs."""

from __future__ import annotations

from typing import NamedTuple

import triton

from scalefold_kernels.gpu import num_sms
from scalefold_kernels.ops.attention.arguments import Inputs

SHARED_BYTES = 228 * 1024
"""Shared memory of an SM."""

RESERVED_BYTES = 1024 + 256
"""Of each CTA's shared memory: by the system, for barriers, and what alignment costs."""

REGISTERS = 64 * 1024
"""Of an SM."""

THREADS = 128
"""Of a warp group. Triton sets a whole group's registers aside for a loader warp, too."""


class Plan(NamedTuple):
    """How a kernel is launched.

    Attributes
    ----------
    constants : dict
        Constants of the kernel and options of the launch.
    ctas : int
        Of one sample; `parts.place_of_cta` deals out the rows.
    groups : int
        The fewest CTAs that share a tile.
    """

    constants: dict[str, int]
    ctas: int
    groups: int


def dealt(
    constants: dict[str, int], inputs: Inputs, blocks: int, ctas_an_sm: int, unit: int = 1
) -> Plan:
    """So many CTAs that they fill the GPU once, where there are enough rows for them.

    Parameters
    ----------
    constants : dict
    inputs : Inputs
    blocks : int
        Of a row and head; a CTA has one of them.
    ctas_an_sm : int
        How many of them an SM holds at a time.
    unit : int
        What their number on the GPU is a multiple of.
    """
    tiles = blocks * inputs.num_heads
    together = num_sms(inputs.q.device) * ctas_an_sm // inputs.batch // unit * unit
    count = min(tiles * inputs.num_rows, max(tiles, together))
    return Plan(constants, count, count // tiles)


def fitting(shared_bytes: int, warp_groups: int, maxnreg: int) -> int:
    """How many CTAs an SM holds at a time."""
    needed = shared_bytes + RESERVED_BYTES
    return min(SHARED_BYTES // needed, REGISTERS // (THREADS * warp_groups * maxnreg))


def places(most: int, blocks: int) -> int:
    """Places of a ring: as many as divide the number of blocks, so that each has its own."""
    return max(n for n in range(1, most + 1) if blocks % n == 0)


def key_slots(inputs: Inputs, block: int) -> int:
    """Elements of a row's mask in shared memory."""
    return max(block, triton.next_power_of_2(inputs.num_keys))
