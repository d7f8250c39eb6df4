"""What launches hand to TMA begins at multiples of 16 bytes."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from scalefold_kernels.ops.attention.hopper.launches import gradient_rows
from scalefold_kernels.ops.norm.op import new_stats
from scalefold_kernels.ops.normed_projection import hopper as projection
from scalefold_kernels.ops.normed_projection.arguments import Gradients, Norm, Projections, Sizes
from scalefold_kernels.ops.outer_product import hopper as outer_product
from scalefold_kernels.ops.transition import hopper as transition
from scalefold_kernels.ops.transition.op import Kept, Parameters
from scalefold_kernels.tma import reachable, steps, within_reach


def new(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def beside(*shape: int) -> Tensor:
    """Contiguous, but not at a multiple of 16 bytes: as a part of a flat gradient may lie."""
    size = torch.Size(shape).numel()
    return torch.arange(size + 1).bfloat16()[1:].view(shape)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Replaces kernels of a package, named by its modules; their launches are noted."""

    def note(package: ModuleType, kernels: dict[str, str]) -> list[str]:
        launched: list[str] = []

        class Kernel:
            def __init__(self, name: str) -> None:
                self.name = name

            def __getitem__(self, grid: Any) -> Callable[..., None]:
                return lambda *args, **kwargs: launched.append(self.name)

        for module, name in kernels.items():
            module = import_module(f"{package.__name__}.{module}")
            monkeypatch.setattr(module, name, Kernel(name))
        return launched

    return note


def test_what_it_cannot_take_is_copied() -> None:
    good, bad = new(4, 16), beside(4, 16)
    assert within_reach(good) is good
    for x in (bad, good.t(), new(4, 12), beside(16, 4).t(), new(1, 16).expand(4, 16)):
        copy = within_reach(x)
        assert torch.equal(copy, x)
        assert copy.is_contiguous()
        assert copy.data_ptr() % 16 == 0
    assert reachable(gradient_rows(beside(1, 2, 3, 2, 8)))


def test_steps_of_nothing_are_not_taken() -> None:
    assert not reachable(new(1, 16).expand(4, 16))
    alone = new(8, 3, 16)[:, 1:2, :][:, :, :8].transpose(0, 1)
    assert reachable(alone)
    odd = new(1, 20)[:, :16]
    assert odd.stride() == (20, 1)
    assert steps(odd) == [8, 1]
    assert reachable(odd)


def test_gradient_of_a_transition(noted: Callable[..., list[str]]) -> None:
    kernels = {
        "gradients": "transition_gradients_hopper_kernel",
        "input": "transition_input_hopper_kernel",
        "parameters": "transition_finish_kernel",
    }
    launched = noted(transition, kernels)
    x, row, column = new(40, 64), new(64), new(128)
    parameters = Parameters(row, row, new(128, 64), column, new(64, 128), row)
    transition.backward(beside(40, 64), x, Kept(x, new(2, 40).float()), parameters)
    assert launched == [*kernels.values()]


def test_gradients_of_projections(
    noted: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = "normed_projection_backward_hopper_kernel"
    launched = noted(projection, {"backward": kernel})
    module = import_module(f"{projection.__name__}.backward")
    monkeypatch.setattr(module, "sum_rows", lambda *args: None)
    sizes = Sizes(64, 128, 64, 0)
    x, weight = new(40, 64), new(128, 64)
    norm = Norm(new(64), new(64), new_stats(x))
    gradients = Gradients.of(new(sizes.parameters), sizes)
    projections = Projections(
        sizes, weight, few=None, bias=None, first=0, first_scale=1.0, few_scale=1.0
    )
    through = beside(40, 64)
    projection.backward(beside(40, 128), None, x, norm, projections, through, gradients)
    assert launched == [kernel]


def test_weights_elsewhere_leave_the_outer_product_to_the_other_kernels() -> None:
    operand, weight = new(6, 8, 16), new(8, 64)
    assert outer_product.why_not("forward", operand, operand, weight) is None
    assert "TMA" in str(outer_product.why_not("forward", operand, operand, beside(8, 64)))
