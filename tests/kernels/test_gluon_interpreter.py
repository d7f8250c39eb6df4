"""The interpreter of Gluon: what it computes, and that it finds what would go wrong on a GPU."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gluon_interpreter import DeadlockError, KernelError, interpreted
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.compiler import async_load, async_store
from scalefold_kernels.gluon import mma_layout
from scalefold_kernels.smem import barriers as new_barriers
from scalefold_kernels.tma import tiles_of

SIZE = gl.constexpr(64)
"""Rows and columns of a tile."""

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


def tiles(*tensors: Tensor) -> list[TensorDescriptor]:
    return [tiles_of(x, SIZE.value, SIZE.value) for x in tensors]


def numbers(rows: int = 64, columns: int = 64) -> Tensor:
    return torch.arange(rows * columns).remainder(251).view(rows, columns).bfloat16()


@gluon.jit
def load_tile(desc, ready, tile, row, column):
    mbarrier.expect(ready, SIZE * SIZE * 2)
    async_load(desc, [row, column], ready, tile)


@gluon.jit
def store_tile(desc, tile, row, column):
    async_store(desc, [row, column], tile)
    tma.store_wait(0)


@gluon.jit
def move_kernel(x_desc, out_desc, row, column, WAITS: gl.constexpr, FENCES: gl.constexpr):
    """A tile from memory and, twice as much, to memory."""
    tile = gl.allocate_shared_memory(gl.bfloat16, [SIZE, SIZE], x_desc.layout)
    ready = new_barriers(1, 1).index(0)
    fence_async_shared()
    load_tile(x_desc, ready, tile, row, column)
    if WAITS:
        mbarrier.wait(ready, 0)
    tile.store(tile.load(mma_layout(SIZE)) * 2)
    if FENCES:
        fence_async_shared()
    store_tile(out_desc, tile, 0, 0)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (5, 8), (-3, -8), (70, 0)])
def test_copies_read_zeros_beyond_the_tensor_and_write_nothing(row: int, column: int) -> None:
    x = numbers(67, 72)
    whole = torch.full((60, 80), -1.0).bfloat16()
    out = whole[3:50, 8:32]
    with interpreted():
        move_kernel[(1,)](*tiles(x, out), row, column, WAITS=True, FENCES=True)
    padded = torch.zeros(200, 200).bfloat16()
    padded[64 : 64 + 67, 64 : 64 + 72] = x
    expected = torch.full_like(whole, -1)
    expected[3:50, 8:32] = 2 * padded[64 + row :, 64 + column :][:47, :24]
    assert torch.equal(whole, expected)


@pytest.mark.parametrize(
    ("waits", "fences", "error"),
    [(False, True, "while a copy to it is under way"), (True, False, "stored without a fence")],
)
def test_a_missing_wait_and_a_missing_fence_are_found(
    waits: bool, fences: bool, error: str
) -> None:
    x = numbers()
    with interpreted(), pytest.raises(KernelError, match=error):
        move_kernel[(1,)](*tiles(x, x.clone()), 0, 0, WAITS=waits, FENCES=fences)


@gluon.jit
def ring_load(x_desc, ring, full, empty, TILES: gl.constexpr, WAITS: gl.constexpr):
    for i in range(TILES):
        if WAITS:
            mbarrier.wait(empty.index(i % 2), ((i // 2) & 1) ^ 1)
        load_tile(x_desc, full.index(i % 2), ring.index(i % 2), i * SIZE, 0)


@gluon.jit
def ring_sum(out, ring, full, empty, TILES: gl.constexpr, ARRIVES: gl.constexpr):
    total = gl.full([SIZE, SIZE], 0.0, gl.float32, mma_layout(SIZE))
    for i in range(TILES):
        mbarrier.wait(full.index(i % 2), (i // 2) & 1)
        total += ring.index(i % 2).load(mma_layout(SIZE)).to(gl.float32)
        if ARRIVES:
            mbarrier.arrive(empty.index(i % 2))
    row = gl.arange(0, SIZE, layout=gl.SliceLayout(1, mma_layout(SIZE)))
    gl.store(out + row, gl.sum(total, 1))


@gluon.jit
def ring_kernel(x_desc, out, TILES: gl.constexpr, WAITS: gl.constexpr, ARRIVES: gl.constexpr):
    """Sums of rows of tiles, which a loader brings to two places by turns."""
    ring = gl.allocate_shared_memory(gl.bfloat16, [2, SIZE, SIZE], x_desc.layout)
    full, empty = new_barriers(2, 1), new_barriers(2, 1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (ring_sum, (out, ring, full, empty, TILES, ARRIVES)),
            (ring_load, (x_desc, ring, full, empty, TILES, WAITS)),
        ],
        [1],
        [24],
    )


@pytest.mark.parametrize("seed", range(4))
def test_partitions_hand_tiles_to_each_other(seed: int) -> None:
    x, out = numbers(7 * 64), torch.zeros(64)
    with interpreted(seed):
        ring_kernel[(1,)](*tiles(x), out, TILES=7, WAITS=True, ARRIVES=True)
    assert torch.equal(out, x.float().view(7, 64, 64).sum((0, 2)))


def test_a_missing_arrival_is_a_deadlock() -> None:
    x, out = numbers(7 * 64), torch.zeros(64)
    with interpreted(), pytest.raises(DeadlockError) as found:
        ring_kernel[(1,)](*tiles(x), out, TILES=7, WAITS=True, ARRIVES=False)
    # Whoever waits, and for what.
    assert "partition 0 waits for barrier" in str(found.value)
    assert "partition 1 waits for barrier" in str(found.value)


@pytest.mark.parametrize("seed", range(4))
def test_a_place_that_is_filled_too_early_is_found(seed: int) -> None:
    x, out = numbers(7 * 64), torch.zeros(64)
    with interpreted(seed), pytest.raises(KernelError):
        ring_kernel[(1,)](*tiles(x), out, TILES=7, WAITS=False, ARRIVES=False)


@gluon.jit
def product_kernel(x_desc, y_desc, out, FAULT: gl.constexpr):
    """x @ y twice: in registers, in which ``out`` is left."""
    L: gl.constexpr = mma_layout(SIZE)
    x = gl.allocate_shared_memory(gl.bfloat16, [SIZE, SIZE], x_desc.layout)
    y = gl.allocate_shared_memory(gl.bfloat16, [SIZE, SIZE], y_desc.layout)
    ready = new_barriers(2, 1)
    if FAULT != "barrier":
        fence_async_shared()
    load_tile(x_desc, ready.index(0), x, 0, 0)
    load_tile(y_desc, ready.index(1), y, 0, 0)
    mbarrier.wait(ready.index(0), 0)
    if FAULT != "operand":
        mbarrier.wait(ready.index(1), 0)
    zero = gl.full([SIZE, SIZE], 0.0, gl.float32, L)
    product = warpgroup_mma(x, y, zero, use_acc=False, is_async=True)
    product = warpgroup_mma(x, y, product, is_async=True)
    if FAULT == "overwritten":
        y.store(zero.to(gl.bfloat16))
    if FAULT == "end":
        return
    if FAULT == "too few":
        product = warpgroup_mma_wait(1, [product])
    elif FAULT != "result":
        product = warpgroup_mma_wait(0, [product])
    row = gl.arange(0, SIZE, layout=gl.SliceLayout(1, L))
    column = gl.arange(0, SIZE, layout=gl.SliceLayout(0, L))
    gl.store(out + row[:, None] * SIZE + column[None, :], product * 1.0)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (None, None),
        ("barrier", "stored without a fence"),
        ("operand", "while a copy to it is under way"),
        ("overwritten", "while it is being read"),
        ("too few", "used while it is under way"),
        ("result", "used while it is under way"),
        ("end", "while products are under way"),
    ],
)
def test_products(fault: str | None, error: str | None) -> None:
    torch.manual_seed(0)
    x, y, out = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16(), torch.zeros(64, 64)
    with interpreted():
        if error is None:
            product_kernel[(1,)](*tiles(x, y), out, FAULT=fault)
            # Sums in float32 of 128 exact products.
            torch.testing.assert_close(out, 2 * x.float() @ y.float(), rtol=1e-5, atol=1e-4)
        else:
            with pytest.raises(KernelError, match=error):
                product_kernel[(1,)](*tiles(x, y), out, FAULT=fault)


@gluon.jit
def leaving_kernel(x_desc, out_desc, WAITS: gl.constexpr, ENDS: gl.constexpr):
    """Two tiles through one place."""
    tile = gl.allocate_shared_memory(gl.bfloat16, [SIZE, SIZE], x_desc.layout)
    for i in gl.static_range(2):
        if WAITS:
            tma.store_wait(0)
        tile.store(gl.full([SIZE, SIZE], i + 1.0, gl.bfloat16, mma_layout(SIZE)))
        fence_async_shared()
        async_store(out_desc, [i * SIZE, 0], tile)
    if ENDS:
        tma.store_wait(0)


@pytest.mark.parametrize(
    ("waits", "ends", "error"),
    [
        (True, True, None),
        (False, True, "writes shared memory .* while it is being read"),
        (True, False, "ends while copies read its shared memory"),
    ],
)
def test_results_leave_before_their_place_is_used(
    waits: bool, ends: bool, error: str | None
) -> None:
    out = torch.zeros(128, 64).bfloat16()
    with interpreted():
        if error is None:
            leaving_kernel[(1,)](*tiles(out, out), WAITS=waits, ENDS=ends)
            assert (out[:64] == 1).all()
            assert (out[64:] == 2).all()
        else:
            with pytest.raises(KernelError, match=error):
                leaving_kernel[(1,)](*tiles(out, out), WAITS=waits, ENDS=ends)


@gluon.jit
def read_kernel(x, out, number):
    """Beside its mask a load gives what nobody may use; shared memory begins so, too."""
    at = gl.arange(0, 128, layout=LINE)
    line = gl.allocate_shared_memory(gl.float32, [128], FLAT)
    gl.store(out + at, gl.load(x + at, mask=at < number) + line.load(LINE) * 0)


def test_memory_that_nobody_wrote_is_nan_and_that_of_nobody_an_error() -> None:
    x, out = torch.randn(128), torch.zeros(128)
    with interpreted():
        read_kernel[(1,)](x, out, 100)
        assert out.isnan().all()
        with pytest.raises(KernelError, match="not within one of the tensors"):
            read_kernel[(1,)](x[:90], out, 100)


@gluon.jit
def barrier_kernel(out, FAULT: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(bars.index(0), 1)
    if FAULT == "none there":
        mbarrier.wait(bars.index(1), 0)
    if FAULT == "many":
        mbarrier.arrive(bars.index(0), count=2)
    if FAULT == "beyond":
        mbarrier.arrive(bars.index(2))


@pytest.mark.parametrize(
    ("fault", "error"),
    [("none there", "no barrier"), ("many", "more arrivals"), ("beyond", "no barrier")],
)
def test_wrong_use_of_barriers(fault: str, error: str) -> None:
    with interpreted(), pytest.raises(KernelError, match=error):
        barrier_kernel[(1,)](torch.zeros(1), FAULT=fault)


@gluon.jit
def type_kernel(x, y, out, many):
    """Types as Triton promotes them, and integers divided towards 0."""
    a, b = gl.load(x), gl.load(y)
    assert a.dtype == gl.bfloat16
    assert (a * 2).dtype == gl.bfloat16
    assert (a * 2.5).dtype == gl.bfloat16
    assert (a / a).dtype == gl.float32
    assert (a + b).dtype == gl.float32
    assert (many + 1).dtype == gl.int32
    assert (many.to(gl.int64) * many).dtype == gl.int64
    gl.store(out, (a + a * 0.00390625).to(gl.float32))
    gl.store(out + 1, (0 - many) // 2)
    gl.store(out + 2, (0 - many) % 2)
    gl.store(out + 3, b)


def test_types() -> None:
    out = torch.zeros(4)
    with interpreted():
        type_kernel[(1,)](torch.tensor([1.0]).bfloat16(), torch.tensor([1.0]), out, 7)
    # 1 + 2^-8 is between two bfloat16; the even one is 1.
    assert out.tolist() == [1.0, -3.0, -1.0, 1.0]


@gluon.jit
def assembly_kernel(out):
    gl.inline_asm_elementwise("add.s32 $0, $1, $1;", "=r,r", [gl.load(out)], gl.int32, True, 1)


def test_unknown_assembly_is_an_error() -> None:
    with interpreted(), pytest.raises(NotImplementedError, match=r"add\.s32"):
        assembly_kernel[(1,)](torch.zeros(1, dtype=torch.int32))


def test_the_same_seed_gives_the_same_order() -> None:
    """With too few waits the result depends on the order; the same one fails in the same way."""

    def found(seed: int) -> str:
        x, out = numbers(7 * 64), torch.zeros(64)
        with interpreted(seed), pytest.raises(KernelError) as error:
            ring_kernel[(1,)](*tiles(x), out, TILES=7, WAITS=False, ARRIVES=True)
        return str(error.value)

    assert [found(seed) for seed in range(3)] == [found(seed) for seed in range(3)]
