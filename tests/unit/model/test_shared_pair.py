from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from scalefold.model import shared_pair
from scalefold.ops import TORCH

BATCH, SIZE, HEADS, CHANNELS, POINTS, PAIR_CHANNELS = 2, 5, 3, 4, 2, 6
LAYERS = 3


def draw(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def others(layer: int) -> list[Tensor]:
    """All arguments but the pairs."""
    features, points = (BATCH, SIZE, HEADS, CHANNELS), (BATCH, SIZE, HEADS, POINTS, 3)
    shapes = [features] * 3 + [points] * 3 + [(BATCH, HEADS, SIZE, SIZE), (HEADS,)]
    return [draw(*shape, seed=10 * layer + n) for n, shape in enumerate(shapes)]


def gradient(layers: Callable[[Tensor], list[Tensor]]) -> Tensor:
    pair = draw(BATCH, SIZE, SIZE, PAIR_CHANNELS, seed=0).requires_grad_()
    loss = sum(out.pow(2 + n).sum() for n, out in enumerate(layers(pair)))
    return torch.autograd.grad(loss, pair)[0]


def one_use_at_a_time(pair: Tensor) -> list[Tensor]:
    return [TORCH.point_attention(*others(layer), pair)[2] for layer in range(LAYERS)]


def test_gradient_of_shared_pairs_is_that_of_one_use_at_a_time() -> None:
    calls: list[int] = []

    def counted(grads: list[Tensor], *kept: list[Tensor]) -> Tensor:
        calls.append(len(grads))
        return TORCH.point_attention_pair_gradient(grads, *kept)

    def shared(pair: Tensor) -> list[Tensor]:
        ops = replace(TORCH, point_attention_pair_gradient=counted)
        layers = shared_pair.for_layers(ops, pair, HEADS, LAYERS)
        return [layer.attend(ops, *others(n))[2] for n, layer in enumerate(layers)]

    expected = gradient(one_use_at_a_time)
    torch.testing.assert_close(gradient(shared), expected, rtol=1e-12, atol=1e-12)
    assert calls == [LAYERS]
