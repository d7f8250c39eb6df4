"""Triton kernel that exchanges parts of tensors between ranks: one launch on each of them."""

from math import prod

import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.ops.exchange.op import Inbox, Parts, ctas
from scalefold_kernels.tiles import architecture, find_config

MAX_POLLS = 2**30
"""How often a CTA looks for a flag, about a microsecond each: for a quarter of an hour. GPUs may be
minutes apart when the first step compiles."""


@triton.jit
def flags_of(inboxes, slot_bytes):
    """The flags are at the end of an inbox, behind both slots."""
    places = inboxes + slot_bytes + slot_bytes  # twice could exceed int32
    return places.to(tl.pointer_type(tl.int64))


@triton.jit
def slots_of(inboxes, like_ptr, slot_bytes, count):
    """The inboxes' slots of an exchange: odd and even ones have a slot each."""
    places = inboxes + count % 2 * slot_bytes
    return tl.multiple_of(places.to(tl.pointer_type(like_ptr.dtype.element_ty)), 16)


@triton.jit
def places(tile, across, rows, run, sizes, a, d, b, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Offsets of a tile's elements: by the rows' strides, and in dense rows; and which exist."""
    row = tile // across * ROWS + tl.arange(0, ROWS)
    col = tile % across * COLS + tl.arange(0, COLS)
    wide = row.to(tl.int64)
    size_d, size_b = sizes
    start = wide // (size_d * size_b) * a + wide // size_b % size_d * d + wide % size_b * b
    inside = (row < rows)[:, None] & (col < run)[None, :]
    return start[:, None] + col[None, :], wide[:, None] * run + col[None, :], inside


@triton.jit(do_not_specialize=["rows", "size_d", "size_b", "rank"])
def exchange_kernel(
    x_ptr, out_ptr, inboxes_ptr, counts_ptr, slot_bytes, rank, rows, size_d, size_b, run,
    x_a, x_d, x_b, x_part, out_a, out_d, out_b, out_part,
    SIZE: tl.constexpr, PEERS: tl.constexpr, SUM: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, GRID: tl.constexpr, LOOKS: tl.constexpr,
):  # fmt: skip
    """Send each rank its part of ``x``; put what comes at its place in ``out``, or add it up.

    A part has ``rows`` runs of contiguous elements. Each CTA sends the same tiles of all parts,
    raises its flag at the peers, waits for theirs and takes the same tiles out of the inbox. All
    peers (at most ``PEERS``, a power of two) are served at once: after one another, each of them
    would add a fence and a way over NVLink.

    A CTA counts the exchanges, and the count is what its flags are raised to: so none is ever
    reset, and a graph can be replayed. The inbox has two slots, for odd and even counts. That is
    enough: who sends in exchange n has seen a flag of n - 1 of each peer, so its kernel n - 2 has
    ended and the slot has been read.
    """
    cta = tl.program_id(0)
    count = tl.load(counts_ptr + cta) + 1
    across = tl.cdiv(run, COLS)
    tiles = tl.cdiv(rows, ROWS) * across
    part = tl.cast(rows, tl.int64) * run
    x_part, out_part = tl.cast(x_part, tl.int64), tl.cast(out_part, tl.int64)
    sizes, order = (size_d, size_b), tl.arange(0, PEERS)
    exists = order < SIZE - 1
    peers = ((rank + 1 + order) % SIZE).to(tl.int64)  # each rank begins with another
    inboxes, own_inbox = tl.load(inboxes_ptr + peers), tl.load(inboxes_ptr + rank)
    slots_ptr = slots_of(inboxes, x_ptr, slot_bytes, count)[:, None, None]
    own_slot_ptr = slots_of(own_inbox, x_ptr, slot_bytes, count)
    peer_parts, own = peers[:, None, None], tl.cast(rank, tl.int64)

    tile = cta
    while tile < tiles:
        at, flat, inside = places(tile, across, rows, run, sizes, x_a, x_d, x_b, ROWS, COLS)
        mask = exists[:, None, None] & inside[None, :, :]
        sent = tl.load(x_ptr + peer_parts * x_part + at[None, :, :], mask=mask)
        tl.store(slots_ptr + (own * part + flat)[None, :, :], sent, mask=mask)
        tile += GRID
    if cta < tiles:
        tl.debug_barrier()  # all threads have sent before flags are raised
        flags_ptr = flags_of(inboxes, slot_bytes) + rank * GRID + cta
        raised = tl.full([PEERS], 0, tl.int64) + count
        tl.atomic_xchg(flags_ptr, raised, mask=exists, sem="release", scope="sys")
        if not SUM:  # while the others' parts are on their way
            tile = cta
            while tile < tiles:
                at, _, inside = places(tile, across, rows, run, sizes, x_a, x_d, x_b, ROWS, COLS)
                to, _, _ = places(tile, across, rows, run, sizes, out_a, out_d, out_b, ROWS, COLS)
                kept = tl.load(x_ptr + own * x_part + at, mask=inside)
                tl.store(out_ptr + own * out_part + to, kept, mask=inside)
                tile += GRID
        flags_ptr = flags_of(own_inbox, slot_bytes) + peers * GRID + cta
        looks, fewest = 0, count - 1
        while (fewest < count) & (looks < LOOKS):
            seen = tl.atomic_add(flags_ptr, raised - count, exists, sem="acquire", scope="sys")
            fewest = tl.min(tl.where(exists, seen, count), 0)
            looks += 1
        tl.device_assert(fewest >= count, "a GPU that shares the sample does not answer")
        tl.debug_barrier()
    tile = cta
    while tile < tiles:
        at, flat, inside = places(tile, across, rows, run, sizes, x_a, x_d, x_b, ROWS, COLS)
        to, _, _ = places(tile, across, rows, run, sizes, out_a, out_d, out_b, ROWS, COLS)
        mask = exists[:, None, None] & inside[None, :, :]
        came_ptr = own_slot_ptr + peer_parts * part + flat[None, :, :]
        came = tl.load(came_ptr, mask=mask, other=0.0, cache_modifier=".cg")
        if SUM:
            kept = tl.load(x_ptr + own * x_part + at, mask=inside)
            total = kept.to(tl.float32) + tl.sum(came.to(tl.float32), 0)
            tl.store(out_ptr + to, total.to(out_ptr.dtype.element_ty), mask=inside)
        else:
            tl.store(out_ptr + peer_parts * out_part + to[None, :, :], came, mask=mask)
        tile += GRID
    tl.debug_barrier()  # all threads have loaded the count
    tl.store(counts_ptr + cta, count)


def exchange(inbox: Inbox, x: Tensor, out: Tensor, parts: Parts, sum_up: bool) -> None:
    """See `op.exchange`. ``ELEMENTS`` are what a CTA moves at once, of all peers."""
    peers = triton.next_power_of_2(inbox.size - 1)
    config = find_config("exchange", architecture(x.device), {"size": inbox.size})
    elements = config.pop("ELEMENTS") // peers
    cols = min(triton.next_power_of_2(parts.run), elements)
    grid = ctas(x.device.type)
    exchange_kernel[(grid,)](
        x, out, inbox.addresses, inbox.counts, inbox.slot_bytes, inbox.rank,
        prod(parts.rows), *parts.rows[1:], parts.run,
        *parts.x_strides, parts.x_part, *parts.out_strides, parts.out_part,
        SIZE=inbox.size, PEERS=peers, SUM=sum_up, ROWS=elements // cols, COLS=cols, GRID=grid,
        LOOKS=MAX_POLLS, **config,
        debug=True,  # with the kernel's assertion, but without checks of each sum
        sanitize_overflow=False,
    )  # fmt: skip
