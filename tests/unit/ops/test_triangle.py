import torch
from tests.unit.ops.draws import draw
from torch.nn import functional

from scalefold.ops.dropout import Dropout, dropout_mask
from scalefold.ops.triangle import (
    triangle_output,
    triangle_product_incoming,
    triangle_product_outgoing,
    triangle_projection,
)


def test_products_written_out() -> None:
    a, b = draw(1, 4, 5, 3), draw(1, 6, 5, 3, seed=1)
    out = triangle_product_outgoing(a, b)
    expected = sum(a[0, 2, k, 1] * b[0, 5, k, 1] for k in range(5))
    torch.testing.assert_close(out[0, 2, 5, 1], expected)
    assert out.shape == (1, 4, 6, 3)
    a, b = a.transpose(1, 2), b.transpose(1, 2)  # (k, i), (k, j)
    torch.testing.assert_close(triangle_product_incoming(a, b), out)


def test_incoming_product_is_a_sum_over_shards_of_rows() -> None:
    a, b = draw(1, 6, 6, 3), draw(1, 6, 6, 3, seed=1)
    parts = [triangle_product_incoming(a[:, s], b[:, s]) for s in (slice(0, 3), slice(3, 6))]
    torch.testing.assert_close(parts[0] + parts[1], triangle_product_incoming(a, b))


def test_projection_masks_and_gates_operands_only() -> None:
    z, mask = draw(1, 3, 3, 4), torch.ones(1, 3, 3)
    mask[0, 1, 2] = 0
    norm = draw(4, seed=1), draw(4, seed=2)
    weights = [draw(5, 4, seed=3 + i) if i % 2 == 0 else draw(5, seed=3 + i) for i in range(8)]
    gate = draw(4, 4, seed=20), draw(4, seed=21)
    a, b, g, same = triangle_projection(
        z, mask, *norm, *weights, gate_weight=gate[0], gate_bias=gate[1]
    )
    assert same is z
    assert (a[0, 1, 2] == 0).all()
    assert (b[0, 1, 2] == 0).all()
    assert (g[0, 1, 2] != 0).all()
    x = functional.layer_norm(z, (4,), *norm)[0, 0, 1]
    expected = torch.sigmoid(weights[6] @ x + weights[7]) * (weights[4] @ x + weights[5])
    torch.testing.assert_close(b[0, 0, 1], expected)


def test_output_is_gated_dropped_and_added() -> None:
    z, product, gate = draw(1, 2, 2, 4, seed=5), draw(1, 2, 2, 5), draw(1, 2, 2, 4, seed=1)
    norm = torch.ones(5).double(), torch.zeros(5).double()
    weight, bias = draw(4, 5, seed=2), draw(4, seed=3)
    out = triangle_output(z, product, gate, *norm, weight, bias, None)
    x = product[0, 1, 0]
    x = (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + 1e-5)
    expected = (weight @ x + bias) / (1 + torch.exp(-gate[0, 1, 0]))
    torch.testing.assert_close(out[0, 1, 0], z[0, 1, 0] + expected)
    key = torch.tensor([3])
    dropped = triangle_output(
        z, product, gate, *norm, weight, bias, Dropout(key, layer=2, rate=0.25, shared_dim=-3)
    )
    keep = dropout_mask(key, 2, 0.25, [1, 2, 4])
    torch.testing.assert_close(dropped, torch.where(keep, z + (out - z) / 0.75, z))
