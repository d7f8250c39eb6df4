"""Exchange by push on one rank; `tests/parity/test_push.py` has several."""

import pytest
import torch

from scalefold_kernels.ops.exchange import Inbox, Parts, ctas, exchange

SLOT_BYTES = 2**16


def inbox(memories: list[torch.Tensor]) -> Inbox:
    addresses = torch.tensor([memory.data_ptr() for memory in memories])
    counts = torch.zeros(ctas("cpu"), dtype=torch.int64)
    return Inbox(memories[0], addresses, 0, SLOT_BYTES, counts)


def memory() -> torch.Tensor:
    return torch.zeros(Inbox.bytes_for(SLOT_BYTES, 2), dtype=torch.uint8)


def test_what_does_not_fit_the_slot_is_refused() -> None:
    x = torch.randn(SLOT_BYTES // 4)
    parts = Parts.of_gather(x.shape, 0, 2)
    with pytest.raises(ValueError, match=r"131072.*65536"):
        exchange(inbox([memory(), memory()]), x, x.repeat(2), parts, sum_up=False)


@pytest.mark.parametrize(("sharded", "to"), [(1, 2), (2, 1), (0, 3), (3, 1)])
def test_parts_of_a_switch_lie_where_slices_do(sharded: int, to: int) -> None:
    size, shape = 2, [4, 4, 6, 4]
    parts = Parts.of_switch(shape, sharded, to, size)
    x = torch.arange(4 * 4 * 6 * 4).view(shape)
    result = list(shape)
    result[sharded] *= size
    result[to] //= size
    out = torch.arange(x.numel()).view(result)
    rows, runs = [*parts.rows, parts.run], (1,)
    for rank in range(size):
        sent = x.flatten().as_strided(rows, (*parts.x_strides, *runs), rank * parts.x_part)
        assert torch.equal(sent.flatten(), x.chunk(size, to)[rank].flatten())
        place = out.flatten().as_strided(rows, (*parts.out_strides, *runs), rank * parts.out_part)
        assert torch.equal(place.flatten(), out.chunk(size, sharded)[rank].flatten())
