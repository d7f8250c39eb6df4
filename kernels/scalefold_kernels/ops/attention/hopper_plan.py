"""How the kernels for Hopper GPUs are launched: rows of a program, blocks, shared memory."""

from __future__ import annotations

from typing import NamedTuple

import triton

from scalefold_kernels.gpu import num_sms
from scalefold_kernels.ops.attention.arguments import Inputs
from scalefold_kernels.tiles import tile
from scalefold_kernels.tma import padded

SHARED_BYTES = 228 * 1024
"""Shared memory of an SM."""

RESERVED_BYTES = 1024
"""Of each program's shared memory, by the system."""

REGISTERS = 64 * 1024
"""Of an SM."""

THREADS = 128
"""Of a program: one warp group."""


class Plan(NamedTuple):
    """How a kernel is launched.

    Attributes
    ----------
    constants : dict
        Constants of the kernel and options of the launch.
    programs : int
        Of one sample; `parts.place_of_program` deals out the rows.
    groups : int
        The fewest programs that share a tile.
    """

    constants: dict[str, int]
    programs: int
    groups: int


def plan(kernel: str, inputs: Inputs, first_key: int = 0) -> Plan:
    """For one of the kernels that have a table of tiles; that of queries may begin at a key."""
    sizes = constants(kernel, inputs, first_key)
    own = inputs.num_keys if kernel == "attention_backward_keys_hopper" else inputs.num_queries
    blocks = triton.cdiv(own, 64 * sizes.get("GROUPS", 1))
    # All blocks of a row and head share their keys, and so are under way at a time; where programs
    # sum up the bias's gradient, all heads have equally many.
    sums = kernel == "attention_backward_queries_hopper"
    unit = blocks * inputs.num_heads if sums else blocks
    return dealt(sizes, inputs, blocks, _fitting(kernel, inputs, sizes), unit)


def dealt(
    constants: dict[str, int], inputs: Inputs, blocks: int, programs: int, unit: int = 1
) -> Plan:
    """So many programs that they fill the GPU once, where there are enough rows for them.

    Parameters
    ----------
    constants : dict
    inputs : Inputs
    blocks : int
        Of a row and head; a program has one of them.
    programs : int
        How many of them an SM holds at a time.
    unit : int
        What their number on the GPU is a multiple of.
    """
    tiles = blocks * inputs.num_heads
    together = num_sms(inputs.q.device) * programs // inputs.batch // unit * unit
    count = min(tiles * inputs.num_rows, max(tiles, together))
    return Plan(constants, count, count // tiles)


def constants(kernel: str, inputs: Inputs, first_key: int = 0) -> dict[str, int]:
    """The tile, with places of the ring that divide the number of blocks."""
    sizes = tile(kernel, "sm_90", inputs.shape_class)
    if kernel == "attention_backward_keys_hopper":
        blocks = triton.cdiv(inputs.num_queries, sizes["BLOCK_Q"])
    elif kernel == "attention_backward_queries_hopper":
        own = inputs.num_keys - first_key
        passes = 1 if inputs.bias is None else triton.cdiv(own, sizes["PASS_K"])
        del sizes["PASS_K"]
        sizes |= {"PASSES": passes, "FIRST_K": first_key}
        blocks = triton.cdiv(own, sizes["BLOCK_K"] * passes)
    else:
        blocks = triton.cdiv(inputs.num_keys, sizes["BLOCK_K"])
    places = max(n for n in range(1, sizes["PLACES"] + 1) if blocks % n == 0)
    sizes |= {"PLACES": places, "NUM_BLOCKS": blocks, "C": padded(inputs.channels)}
    if kernel != "attention_backward_keys_hopper":
        sizes["KEYS"] = max(sizes["BLOCK_K"], triton.next_power_of_2(inputs.num_keys))
    else:
        # The next row's keys may be on their way unless that costs a program.
        sizes["SIDES"] = max(2, 1, key=lambda n: _fitting(kernel, inputs, {**sizes, "SIDES": n}))
    return sizes


def warp_groups(kernel: str, inputs: Inputs) -> int:
    """How many warp groups, without loaders, an SM holds at a time."""
    sizes = constants(kernel, inputs)
    return _fitting(kernel, inputs, sizes) * sizes.get("GROUPS", 1)


def _fitting(kernel: str, inputs: Inputs, sizes: dict[str, int]) -> int:
    # Barriers, and what alignment costs.
    needed = KERNELS[kernel](inputs, sizes) + 256 + RESERVED_BYTES
    threads = THREADS * (sizes.get("GROUPS", 1) + (kernel in LOADED))
    return min(SHARED_BYTES // needed, REGISTERS // (threads * sizes["maxnreg"]))


def _forward_bytes(inputs: Inputs, sizes: dict[str, int]) -> int:
    """Shared memory: bias; keys and values; queries and result; masks of two rows."""
    block, channels, queries = sizes["BLOCK_K"], sizes["C"], 64 * sizes["GROUPS"]
    bias = 2 * 64 * block if inputs.bias is None else 2 * queries * block * sizes["NUM_BLOCKS"]
    return bias + 2 * channels * (2 * sizes["PLACES"] * block + 2 * queries) + 4 * sizes["KEYS"]


def _backward_queries_bytes(inputs: Inputs, sizes: dict[str, int]) -> int:
    """Shared memory: bias and its gradient; keys and values; queries and gradient; mask."""
    block, channels = sizes["BLOCK_K"], sizes["C"]
    keys = sizes["NUM_BLOCKS"] * block
    bias = 2 * 64 * block + 4 * 8 * keys if inputs.bias is None else (2 + 4) * 64 * keys
    return bias + 2 * channels * (2 * sizes["PLACES"] * block + 2 * 64) + 2 * sizes["KEYS"]


def _backward_keys_bytes(inputs: Inputs, sizes: dict[str, int]) -> int:
    """Shared memory: bias; queries and gradient; keys and values; statistics."""
    block, channels, places = sizes["BLOCK_Q"], sizes["C"], sizes["PLACES"]
    bias = 2 * 64 * block * (1 if inputs.bias is None else sizes["NUM_BLOCKS"])
    own = 2 * sizes["SIDES"] * 64
    return bias + 2 * channels * (2 * places * block + own) + 8 * places * block


KERNELS = {
    "attention_forward_hopper": _forward_bytes,
    "attention_backward_queries_hopper": _backward_queries_bytes,
    "attention_backward_keys_hopper": _backward_keys_bytes,
}


LOADED = {"attention_forward_hopper", "attention_backward_keys_hopper"}
"""Programs with a loader warp, for which a whole warp group's registers are set aside."""

ROW_PROGRAMS = 2
"""Of `backward_row` an SM holds so many at a time: two stages of a row in each."""


def row_plan(inputs: Inputs) -> Plan:
    """For `backward_row`: each program goes through rows and heads at equal distances."""
    items = inputs.batch * inputs.num_rows * inputs.num_heads
    count = min(items, ROW_PROGRAMS * num_sms(inputs.q.device))
    constants = {
        "C": padded(inputs.channels),
        "NUM_Q": triton.cdiv(inputs.num_queries, 64),
        "num_warps": 4 * triton.cdiv(inputs.num_keys, 64),
        "maxnreg": 128,
    }
    return Plan(constants, count, 1)
