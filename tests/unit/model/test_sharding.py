"""The model on several ranks: threads that exchange shards, against the plain model.

This proves the layout that the blocks claim (`evoformer.py`): with an axis that moves data, the
same model gives the same outputs and, by the two regimes of `parallel.axis`, the same gradients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from tests.example import example_features, set_example_weights
from torch import Tensor

from scalefold.model import AlphaFold, Assembly, Previous
from scalefold.parallel import Pending, Ready

SIZES = {"B": 1, "N": 8, "S": 6, "E": 4, "T": 2}


class Group:
    """Ranks as threads; each exchange is a meeting of all of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=600)
        self.slots: list[Tensor] = [torch.empty(0)] * size
        self.exchanges = 0

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        self.slots[rank] = x
        self.barrier.wait()
        everyone = list(self.slots)
        if rank == 0:
            self.exchanges += 1
        self.barrier.wait()
        return everyone


class _Exchange(torch.autograd.Function):
    """Forward and backward given as functions on plain tensors."""

    @staticmethod
    def forward(ctx, x: Tensor, there, back):
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return ctx.back(gradient.contiguous()), None, None


class ThreadAxis:
    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank, self.size = group, rank, group.size

    def _own(self, x: Tensor, dim: int) -> Tensor:
        assert x.shape[dim] % self.size == 0
        return x.chunk(self.size, dim)[self.rank].clone()

    def _gather(self, x: Tensor, dim: int) -> Tensor:
        return torch.cat(self.group.exchange(self.rank, x), dim)

    def _reduce(self, x: Tensor, dim: int) -> Tensor:
        return torch.stack([self._own(y, dim) for y in self.group.exchange(self.rank, x)]).sum(0)

    def _switch(self, x: Tensor, sharded: int, to: int) -> Tensor:
        parts = self.group.exchange(self.rank, x)
        return torch.cat([self._own(part, to) for part in parts], sharded)

    def _pad(self, x: Tensor, dim: int) -> Tensor:
        parts = [torch.zeros_like(x) for _ in range(self.size)]
        parts[self.rank] = x
        return torch.cat(parts, dim)

    def split(self, x: Tensor, dim: int) -> Tensor:
        return _Exchange.apply(x, lambda y: self._own(y, dim), lambda g: self._pad(g, dim))

    def switch(self, x: Tensor, sharded: int, to: int) -> Pending:
        there: Callable[[Tensor], Tensor] = lambda y: self._switch(y, sharded, to)  # noqa: E731
        return Ready(_Exchange.apply(x, there, lambda g: self._switch(g, to, sharded)))

    def gather_to_sharded(self, x: Tensor, dim: int) -> Pending:
        return Ready(
            _Exchange.apply(x, lambda y: self._gather(y, dim), lambda g: self._reduce(g, dim))
        )

    def reduce_to_sharded(self, x: Tensor, dim: int) -> Pending:
        return Ready(
            _Exchange.apply(x, lambda y: self._reduce(y, dim), lambda g: self._gather(g, dim))
        )

    def gather_to_replicated(self, x: Tensor, dim: int) -> Pending:
        return Ready(
            _Exchange.apply(x, lambda y: self._gather(y, dim), lambda g: self._own(g, dim))
        )


def run(model: AlphaFold, config) -> list[Tensor]:
    features = example_features(SIZES, padding=1)
    features = {n: x.double() if x.is_floating_point() else x for n, x in features.items()}
    templates = model.embed_templates(features)
    with torch.no_grad():
        zeros = Previous.zeros(1, SIZES["N"], config, like=model.evoformer.linear.weight)
        previous = model.recycle(features, zeros, templates)
    outputs, after = model(features, previous, templates)
    tensors = [
        *after,
        outputs.distogram_logits,
        outputs.masked_msa_logits,
        outputs.plddt_logits,
        outputs.experimentally_resolved_logits,
    ]
    sum(x.square().mean() for x in tensors).backward()
    return [x.detach() for x in tensors]


def make(config, assembly: Assembly) -> AlphaFold:
    model = AlphaFold(config, assembly).double()
    set_example_weights(model)
    return model.train()


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_together_equal_one_process(config, size: int) -> None:
    plain = make(config, Assembly())
    expected = run(plain, config)

    group = Group(size)
    models = [make(config, Assembly(axis=ThreadAxis(group, rank))) for rank in range(size)]
    results: list[list[Tensor]] = [[] for _ in range(size)]
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = run(models[rank], config)
        except BaseException as error:
            errors.append(error)
            group.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]

    for result in results:
        for mine, other in zip(result, expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)

    replicated = {
        id(p) for model in models for m in model.replicated_modules() for p in m.parameters()
    }
    # Some gradients are zero but for rounding (a bias that softmax does not feel).
    largest = max(p.grad.norm().item() for p in plain.parameters() if p.grad is not None)
    for (name, reference), *shards in zip(
        plain.named_parameters(), *(m.parameters() for m in models), strict=True
    ):
        assert reference.grad is not None
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in shards]
        scale = max(reference.grad.abs().max().item(), 1e-6 * largest)
        if id(shards[0]) in replicated:
            candidates = gradients
        else:
            candidates = [torch.stack(gradients).sum(0)]
        for gradient in candidates:
            torch.testing.assert_close(
                gradient,
                reference.grad,
                rtol=0,
                atol=1e-9 * scale,
                msg=lambda m, n=name: f"{n}: {m}",
            )


def test_exchanges_of_one_block_forward(config_of) -> None:
    """As the table in ``evoformer.py`` says: four all-to-alls, five gathers, one reduce-scatter."""
    counts = []
    for blocks in (1, 2):
        config = config_of(evoformer={"num_blocks": blocks}, template={"enabled": False})
        group = Group(1)
        model = make(config, Assembly(axis=ThreadAxis(group, 0)))
        with torch.no_grad():
            zeros = Previous.zeros(1, SIZES["N"], config, like=model.evoformer.linear.weight)
            features = example_features(SIZES)
            features = {n: x.double() if x.is_floating_point() else x for n, x in features.items()}
            model.recycle(features, zeros, model.embed_templates(features))
        counts.append(group.exchanges)
    assert counts[1] - counts[0] == 10
