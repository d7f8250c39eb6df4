"""Ranks may divide the optimiser's state; whole trainings: tests/unit/train/test_ranks.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scalefold.config import Config, make_config
from scalefold.config.load import merge
from scalefold.errors import InputError
from scalefold.parallel import SINGLE, Ranks
from scalefold.train.assemble import assemble

CPU = torch.device("cpu")


class Among(Ranks):
    """The second of some ranks, the others' parts never come."""

    rank = 1

    def __init__(self, size: int) -> None:
        self.size = size


def dividing(micro: Config) -> Config:
    tree = {"parallel": {"shard_optimiser": True}}
    return make_config(merge(micro.model_dump(mode="json"), tree))


def test_each_rank_has_its_part_of_moments_and_average(micro: Config) -> None:
    parts = assemble(dividing(micro), CPU, replace(SINGLE, world=Among(4)))
    weights, tensors = parts.parameters.master, parts.state.tensors()
    own = slice(weights.numel() // 4, weights.numel() // 2)
    assert torch.equal(tensors["averaged"], weights[own])
    for name in ("averaged", "first_moment", "second_moment"):
        assert tensors[name].untyped_storage().nbytes() == 4 * weights.numel() // 4


def test_what_was_divided_is_whole_for_a_moment(micro: Config) -> None:
    parts = assemble(dividing(micro), CPU, replace(SINGLE, world=Among(2)))
    half = parts.parameters.master.numel() // 2
    parts.state.optimiser.first_moment.fill_(3.0)
    found = {name: tensor.clone() for name, tensor in parts.state.whole()}
    assert torch.equal(found["weights"], parts.parameters.master)
    assert bool((found["first_moment"][half:] == 3.0).all())
    assert bool((found["second_moment"][half:] == 0.0).all())
    assert not parts.parameters.gradient.any()  # where they were gathered


def test_processes_that_cannot_divide_evenly_are_an_error(micro: Config) -> None:
    size = next(n for n in (3, 5, 7, 11) if assemble(micro, CPU).parameters.master.numel() % n)
    with pytest.raises(InputError, match=rf"shard_optimiser.*\b{size}\b"):
        assemble(dividing(micro), CPU, replace(SINGLE, world=Among(size)))
