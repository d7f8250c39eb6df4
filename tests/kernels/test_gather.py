"""Many tensors into their places of one flat buffer."""

import pytest
import torch
from torch import Tensor

from scalefold.optim.gather import TorchGather
from scalefold.optim.parameters import FlatParameters
from scalefold_kernels.ops.gather import Gather
from scalefold_kernels.tiles import overridden

SIZES, PLACES = [5, 64, 300, 1, 128], [0, 64, 128, 448, 512]
LENGTH, UNTOUCHED = 704, 7.0


def tensors(device: torch.device) -> list[Tensor]:
    """Whole ones, parts of larger ones that start at odd places, and one of another layout."""
    torch.manual_seed(0)
    whole = [torch.randn(size + 3, device=device) for size in SIZES]
    parts = [x[:-3] if n % 2 else x[3:] for n, x in enumerate(whole)]
    parts[2] = parts[2].view(20, 15).t()
    return parts


def expected(parts: list[Tensor]) -> Tensor:
    buffer = parts[0].new_full((LENGTH,), UNTOUCHED)
    for place, size, part in zip(PLACES, SIZES, parts, strict=True):
        buffer[place : place + size] = part.reshape(-1)
    return buffer


@pytest.mark.parametrize("make", [TorchGather, Gather])
def test_each_lies_at_its_place_and_gaps_stay(make: type, device: torch.device) -> None:
    buffer = torch.full((LENGTH,), UNTOUCHED, device=device)
    with overridden() as lookups:
        lookups.force("gather", BLOCK=64, num_warps=4, num_stages=2)
        gather = make(buffer, PLACES, SIZES)
        for _ in range(2):  # from other addresses
            parts = tensors(device)
            gather(parts)
            assert torch.equal(buffer, expected(parts))


def test_nothing_to_gather(device: torch.device) -> None:
    buffer = torch.full((8,), UNTOUCHED, device=device)
    Gather(buffer, [], [])([])
    assert (buffer == UNTOUCHED).all()


def test_wrong_tensors_are_named(device: torch.device) -> None:
    gather = Gather(torch.zeros(LENGTH, device=device), PLACES, SIZES)
    with pytest.raises(ValueError, match="multiples of 8"):
        Gather(torch.zeros(8, device=device), [0, 3], [3, 5])
    with pytest.raises(ValueError, match=r"4 .*5 "):
        gather(tensors(device)[1:])
    with pytest.raises(ValueError, match=r"bfloat16.* torch.float32"):
        gather([t.bfloat16() for t in tensors(device)])


def test_gradients_are_those_of_plain_torch(device: torch.device) -> None:
    found = []
    for make in (TorchGather, Gather):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3)).to(device)
        flat = FlatParameters(model, lambda name: name == "0.weight", gather=make)
        hidden = torch.nn.functional.linear(
            torch.ones(2, 7, device=device).bfloat16(), model[0].weight
        )
        flat.backward((model[1](hidden.float()) ** 2).sum())  # not of the first bias
        flat.collect_gradient()
        found.append(flat.gradient)
    assert found[0].any()
    assert torch.equal(*found)


@pytest.mark.gpu
def test_graphs_keep_their_tables(device: torch.device) -> None:
    """Two captured graphs and a call between them: each copies its own tensors at each replay."""
    buffer = torch.full((LENGTH,), UNTOUCHED, device=device)
    gather, stream = Gather(buffer, PLACES, SIZES), torch.cuda.Stream()
    captured = []
    for _ in range(2):
        parts = tensors(device)
        with torch.cuda.stream(stream):
            gather(parts)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            gather(parts)
        captured.append((graph, parts))
    for graph, parts in captured * 2:
        for part in parts:
            part.add_(1)
        buffer.fill_(UNTOUCHED)
        graph.replay()
        assert torch.equal(buffer, expected(parts))
