"""What `test_push` starts: exchanges by push beside those by collectives, forward and backward.

Started as ``torchrun -m tests.parity.push_runs <folder> <device type>``. On CPUs the kernel runs in
Triton's interpreter, and the memory that ranks write to is a file of the folder that all map. Ranks
share GPUs if there are fewer. The collectives run on the CPU. Elements are small integers, so that
sums are exact in bfloat16 and all results are equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from scalefold.launcher import find_place
from scalefold.parallel import Axis, Ranks
from scalefold.parallel.collectives import Collectives
from scalefold.parallel.group_axis import GroupAxis
from scalefold.parallel.launch import joined
from scalefold.parallel.push import Push, push_between, why_not_push
from scalefold.parallel.ranks import MeshRanks
from scalefold_kernels.ops.exchange import Inbox, ctas

Operation = Callable[[Axis, Tensor], Tensor]


def cases(size: int) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...], Operation]]:
    """Name, shape, order of dimensions in memory, and the operation."""
    shapes = [
        ((1, 2 * size, 3 * size, 32), (0, 1, 2, 3)),
        ((1, 2 * size, 3 * size, 8), (0, 3, 1, 2)),
        ((2, size, 5 * size, 3), (0, 2, 1, 3)),
        ((1, 16 * size, 8 * size, 40), (0, 1, 2, 3)),  # more than a tile a CTA
    ]
    for shape, order in shapes:
        what = f"{shape} in order {order}"
        for sharded, to in ((1, 2), (2, 1)):

            def switch(axis: Axis, x: Tensor, sharded: int = sharded, to: int = to) -> Tensor:
                return axis.switch(x, sharded=sharded, to=to).wait()

            yield f"switch {sharded} to {to} of {what}", shape, order, switch
        for dim in (1, 2):

            def gather(axis: Axis, x: Tensor, dim: int = dim) -> Tensor:
                return axis.gather_to_sharded(x, dim).wait()

            def reduce(axis: Axis, x: Tensor, dim: int = dim) -> Tensor:
                return axis.reduce_to_sharded(x, dim).wait()

            yield f"gather {dim} of {what}", shape, order, gather
            yield f"reduce {dim} of {what}", shape, order, reduce


def result_and_gradient(
    axis: Axis, operation: Operation, x: Tensor, like: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Of ``x``; the result's gradient is ``like``, or the result itself."""
    x = x.detach().requires_grad_()
    result = operation(axis, x)
    (gradient,) = torch.autograd.grad(result, x, result.detach() if like is None else like)
    return result.detach(), gradient


def compare(ranks: MeshRanks, push: Push, device: torch.device) -> None:
    """Exchange all cases by both means, each of a few times in another place of the order."""
    pushing, collecting = GroupAxis(push), GroupAxis(Collectives(ranks))
    draws = torch.Generator().manual_seed(ranks.rank)
    for dtype in (torch.bfloat16, torch.float32):
        for name, shape, order, operation in cases(ranks.size):
            in_memory = [shape[dim] for dim in order]
            x = torch.randint(-9, 10, in_memory, generator=draws).to(dtype)
            x = x.permute([order.index(dim) for dim in range(len(order))])
            expected, wanted = result_and_gradient(collecting, operation, x, None)
            like = expected.to(device)
            result, gradient = result_and_gradient(pushing, operation, x.to(device), like)
            assert torch.equal(result.cpu(), expected), f"result of {name} in {dtype}"
            assert torch.equal(gradient.cpu(), wanted), f"gradient of {name} in {dtype}"


def replay(push: Push, device: torch.device) -> None:
    """A captured graph with an odd number of exchanges, replayed between others."""
    x = torch.arange(4096.0, device=device)
    push.gather(x, 0).wait()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        whole = push.gather(x, 0).wait()
    for factor in range(5):
        x.fill_(factor + push.rank)
        graph.replay()
        if factor % 2:
            push.gather(x, 0).wait()
        for rank, part in enumerate(whole.chunk(push.size)):
            assert bool((part == factor + rank).all()), f"replay {factor}, from rank {rank}"


def in_files(folder: Path, ranks: Ranks) -> Push:
    """The exchange of processes that map each other's files."""

    def new_inbox(slot_bytes: int) -> Inbox:
        num_bytes = Inbox.bytes_for(slot_bytes, ranks.size)
        paths = [folder / f"{slot_bytes}-{rank}" for rank in range(ranks.size)]
        with paths[ranks.rank].open("wb") as file:
            file.truncate(num_bytes)
        ranks.barrier()
        mapped = [
            torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)
            for path in paths
        ]
        kept.extend(mapped)
        addresses = torch.tensor([memory.data_ptr() for memory in mapped])
        counts = torch.zeros(ctas("cpu"), dtype=torch.int64)
        return Inbox(mapped[ranks.rank], addresses, ranks.rank, slot_bytes, counts)

    kept: list[Tensor] = []
    return Push(ranks.rank, ranks.size, new_inbox)


def main(folder: Path, device_type: str) -> None:
    """Run on this rank."""
    place = find_place()
    assert place is not None
    cpu = torch.device("cpu")
    with joined(place, lambda: cpu) as (mesh, _):
        ranks = mesh.world
        assert isinstance(ranks, MeshRanks)
        if device_type == "cpu":
            compare(ranks, in_files(folder, ranks), cpu)
            return
        num_gpus = torch.cuda.device_count()
        device = torch.device("cuda", place.local_rank % num_gpus)
        torch.cuda.set_device(device)
        assert num_gpus < ranks.size or why_not_push(ranks, device) is None
        push = push_between(ranks, device)
        compare(ranks, push, device)
        replay(push, device)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
