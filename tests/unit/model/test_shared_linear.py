from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from scalefold.model.assembly import Assembly
from scalefold.model.linear import WideLinear
from scalefold.ops import TORCH

LAYERS = 3


def one_use_at_a_time(linear: WideLinear, x: Tensor) -> Tensor:
    """Several layers with the same weights, one after the other."""
    for _ in range(LAYERS):
        x = x + linear(x)
    return x


def shared(linear: WideLinear, x: Tensor) -> Tensor:
    for of_layer in linear.for_layers(x.shape[:-1], LAYERS):
        x = x + linear.in_layer(x, of_layer)
    return x


def gradients(linear: WideLinear, layers: Callable[[WideLinear, Tensor], Tensor]) -> list[Tensor]:
    x = torch.linspace(-1, 1, 2 * 7 * 5).reshape(2, 7, 5).double().requires_grad_()
    out = layers(linear, x)
    leaves = [x, linear.weight, linear.bias]
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


def test_gradients_of_shared_weights_are_those_of_one_use_at_a_time() -> None:
    for relu in (False, True):
        torch.manual_seed(0)
        linear = WideLinear(5, 5, Assembly(), relu=relu).double()
        expected, found = gradients(linear, one_use_at_a_time), gradients(linear, shared)
        assert torch.equal(expected[0], found[0])
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_gradients_of_shared_weights_are_made_once() -> None:
    uses: list[int] = []

    def counted(grads: list[Tensor], *others: list[Tensor]) -> tuple[Tensor, Tensor]:
        uses.append(len(grads))
        return TORCH.wide_linear_gradients(grads, *others)

    linear = WideLinear(5, 5, Assembly()).double()
    linear.ops = replace(TORCH, wide_linear_gradients=counted)
    gradients(linear, shared)
    assert uses == [LAYERS]
