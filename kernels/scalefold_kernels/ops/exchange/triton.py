"""Triton kernel that exchanges parts of tensors between ranks: one launch on each of them."""

import triton
import triton.language as tl


@triton.jit
def inbox_of(inboxes_ptr, rank):
    """Address of a rank's inbox, as this rank sees it."""
    return tl.load(inboxes_ptr + rank)


@triton.jit
def flags_of(inboxes_ptr, rank, slot_bytes):
    """The flags are at the end of the inbox, behind both slots."""
    place = inbox_of(inboxes_ptr, rank) + slot_bytes + slot_bytes  # twice could exceed int32
    return place.to(tl.pointer_type(tl.int64))


@triton.jit
def slot_of(inboxes_ptr, rank, like_ptr, slot_bytes, count):
    """The inbox's slot of an exchange: odd and even ones have a slot each."""
    place = inbox_of(inboxes_ptr, rank) + count % 2 * slot_bytes
    return tl.multiple_of(place.to(tl.pointer_type(like_ptr.dtype.element_ty)), 16)


@triton.jit
def places(tile, across, rows, run, D, B, a, d, b, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Of the elements of a tile in a tensor whose rows have these strides; and which exist."""
    row = tile // across * ROWS + tl.arange(0, ROWS)
    col = tile % across * COLS + tl.arange(0, COLS)
    wide = row.to(tl.int64)
    start = wide // (D * B) * a + wide // B % D * d + wide % B * b
    inside = (row < rows)[:, None] & (col < run)[None, :]
    return start[:, None] + col[None, :], wide[:, None] * run + col[None, :], inside


@triton.jit(do_not_specialize=["rows", "D", "B", "rank"])
def exchange_kernel(
    x_ptr,
    out_ptr,
    inboxes_ptr,
    counts_ptr,
    slot_bytes,
    rank,
    rows,
    D,
    B,
    run,
    x_a,
    x_d,
    x_b,
    x_part,
    out_a,
    out_d,
    out_b,
    out_part,
    SIZE: tl.constexpr,
    SUM: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GRID: tl.constexpr,
    LOOKS: tl.constexpr,
):
    """Send each rank its part of ``x``; put what comes at its place in ``out``, or add it up.

    A part has ``rows`` runs of contiguous elements. Each CTA sends the same tiles of all parts,
    raises its flag at the peers, waits for theirs and takes the same tiles out of the inbox.

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

    tile = cta
    while tile < tiles:
        at, flat, inside = places(tile, across, rows, run, D, B, x_a, x_d, x_b, ROWS, COLS)
        for step in tl.static_range(1, SIZE):
            to = (rank + step) % SIZE  # each rank begins with another
            sent = tl.load(x_ptr + to * x_part + at, mask=inside)
            slot_ptr = slot_of(inboxes_ptr, to, x_ptr, slot_bytes, count)
            tl.store(slot_ptr + rank * part + flat, sent, mask=inside)
        tile += GRID
    if cta < tiles:
        tl.debug_barrier()  # all threads have sent before one raises the flags
        for step in tl.static_range(1, SIZE):
            flag_ptr = flags_of(inboxes_ptr, (rank + step) % SIZE, slot_bytes)
            flag_ptr += rank * GRID + cta
            tl.atomic_xchg(flag_ptr, count, sem="release", scope="sys")
        for step in tl.static_range(1, SIZE):
            flag_ptr = flags_of(inboxes_ptr, rank, slot_bytes)
            flag_ptr += (rank + step) % SIZE * GRID + cta
            seen = tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys")
            looks = 0
            while (seen < count) & (looks < LOOKS):
                seen = tl.atomic_add(flag_ptr, 0, sem="acquire", scope="sys")
                looks += 1
            tl.device_assert(seen >= count, "a GPU that shares the sample does not answer")
        tl.debug_barrier()
    slot_ptr = slot_of(inboxes_ptr, rank, x_ptr, slot_bytes, count)
    tile = cta
    while tile < tiles:
        at, flat, inside = places(tile, across, rows, run, D, B, x_a, x_d, x_b, ROWS, COLS)
        to, _, _ = places(tile, across, rows, run, D, B, out_a, out_d, out_b, ROWS, COLS)
        total = tl.zeros([ROWS, COLS], tl.float32)
        for source in tl.static_range(SIZE):
            # Where the own part is, differs by rank; the order of the sum does not.
            own = source == rank
            kept = tl.load(x_ptr + source * x_part + at, mask=inside & own, other=0.0)
            came_ptr = slot_ptr + source * part + flat
            came = tl.load(came_ptr, mask=inside & ~own, other=0.0, cache_modifier=".cg")
            value = tl.where(own, kept, came)
            if SUM:
                total += value
            else:
                tl.store(out_ptr + source * out_part + to, value, mask=inside)
        if SUM:
            tl.store(out_ptr + to, total.to(out_ptr.dtype.element_ty), mask=inside)
        tile += GRID
    tl.debug_barrier()  # all threads have loaded the count
    tl.store(counts_ptr + cta, count)
