from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.example import set_example_weights

from scalefold.model.assembly import Assembly
from scalefold.model.triangle_attention import (
    TriangleAttentionEndingNode,
    TriangleAttentionStartingNode,
)
from scalefold.model.triangle_multiplication import (
    TriangleMultiplicationIncoming,
    TriangleMultiplicationOutgoing,
)
from scalefold.ops import TORCH
from scalefold.ops.attention import LN2


@pytest.fixture
def z() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 5, 5, 8, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("row_kind", "column_kind", "sizes"),
    [
        (TriangleAttentionStartingNode, TriangleAttentionEndingNode, (8, 4, 2)),
        (TriangleMultiplicationOutgoing, TriangleMultiplicationIncoming, (8, 6)),
    ],
)
def test_one_is_the_other_on_the_transposed_pair(row_kind, column_kind, sizes, z, assembly) -> None:
    rows, columns = row_kind(*sizes, assembly).double(), column_kind(*sizes, assembly).double()
    set_example_weights(rows)
    columns.load_state_dict(rows.state_dict(), strict=True)
    mask = torch.ones(2, 5, 5)
    mask[0, 1, 3] = 0
    expected = rows(z.transpose(1, 2), mask.transpose(1, 2), None)
    if row_kind is TriangleAttentionStartingNode:
        expected = expected.transpose(1, 2)
    else:
        # sum_k a_ki b_kj of z is sum_k a_ik b_jk of its transpose, gated by z itself
        gate = rows.linear_g(rows.layer_norm_in(z)).sigmoid()
        other = rows.linear_g(rows.layer_norm_in(z.transpose(1, 2))).sigmoid()
        expected = z + (expected - z.transpose(1, 2)) / other * gate
    torch.testing.assert_close(columns(z, mask, None), expected, rtol=1e-12, atol=1e-12)


def test_attention_follows_the_edges_of_its_algorithm(z, assembly) -> None:
    starting = TriangleAttentionStartingNode(8, 4, 2, assembly).double()
    ending = TriangleAttentionEndingNode(8, 4, 2, assembly).double()
    mask = torch.ones(2, 5, 5)
    for layer, keys, biases in (
        # Alg. 13: ij attends to ik with bias jk; Alg. 14: ij attends to kj with bias ki
        (starting, {(1, k) for k in range(5)}, {(3, k) for k in range(5)}),
        (ending, {(k, 3) for k in range(5)}, {(k, 1) for k in range(5)}),
    ):
        set_example_weights(layer)
        leaf = z.clone().requires_grad_()
        layer(leaf, mask, None)[0, 1, 3].sum().backward()
        assert leaf.grad is not None
        felt = {tuple(p) for p in leaf.grad[0].abs().sum(-1).nonzero().tolist()}
        assert felt == keys | biases


@pytest.mark.parametrize("kind", [TriangleAttentionStartingNode, TriangleAttentionEndingNode])
def test_attention_gets_queries_and_bias_in_bits(kind, z) -> None:
    """So that kernels take both as they come; natural ones would be rounded once more."""
    given = []

    def attention(*arguments: Any) -> torch.Tensor:
        given.append(arguments)
        return TORCH.attention(*arguments)

    layer = kind(8, 4, 2, Assembly(ops=replace(TORCH, attention=attention))).double()
    set_example_weights(layer)
    layer(z, torch.ones(2, 5, 5), None)
    ((q, *_, bias, bias_scale, scale),) = given
    assert scale == bias_scale == LN2
    normed = layer.layer_norm(z)
    natural = layer.mha.linear_q(normed).unflatten(-1, (2, 4)) * 4**-0.5
    natural_bias = layer.linear(normed).movedim(-1, 1)
    if kind is TriangleAttentionEndingNode:
        natural, natural_bias = natural.transpose(1, 2), natural_bias.mT
    torch.testing.assert_close(LN2 * q, natural)
    torch.testing.assert_close(LN2 * bias, natural_bias)
