import math

import pytest
import torch
from tests.unit.ops.draws import draw

from scalefold.ops.attention import LN2, attention


def make(b: int = 2, r: int = 3, n: int = 5, h: int = 2, c: int = 4):
    q, k, v, gate = (draw(b, r, n, h, c, seed=i) for i in range(4))
    mask = (draw(b, r, n, seed=5) > -0.8).double()
    mask[..., 0] = 1.0
    return q, k, v, gate, mask, draw(b, h, n, n, seed=6)


def test_equals_a_sum_written_out() -> None:
    q, k, v, gate, mask, bias = make()
    out = attention(q, k, v, gate, mask, bias)
    b, r, i, h = 1, 2, 3, 1
    weights = [
        math.exp(float(q[b, r, i, h] @ k[b, r, j, h]) / 2.0 + float(bias[b, h, i, j]))
        if mask[b, r, j]
        else 0.0
        for j in range(5)
    ]
    expected = sum(w * v[b, r, j, h] for j, w in enumerate(weights)) / sum(weights)
    expected = expected / (1 + torch.exp(-gate[b, r, i, h]))
    torch.testing.assert_close(out[b, r, i, h], expected, rtol=1e-12, atol=1e-12)


def test_bias_in_bits_is_the_natural_one_in_another_unit() -> None:
    q, k, v, gate, mask, bias = make()
    expected = attention(q, k, v, gate, mask, bias)
    torch.testing.assert_close(attention(q, k, v, gate, mask, bias / LN2, LN2), expected)


def test_queries_in_bits_are_the_natural_ones_in_another_unit() -> None:
    q, k, v, gate, mask, bias = make()
    expected = attention(q, k, v, gate, mask, bias)
    in_bits = q * (q.shape[-1] ** -0.5 / LN2)
    ours = attention(in_bits, k, v, gate, mask, bias / LN2, LN2, scale=LN2)
    torch.testing.assert_close(ours, expected)


def test_masked_keys_have_no_influence() -> None:
    q, k, v, gate, mask, bias = make()
    changed = (mask == 0)[..., None, None]
    out = attention(q, k, v, gate, mask, bias)
    other = attention(
        q, torch.where(changed, 7.0, k), torch.where(changed, -9.0, v), gate, mask, bias
    )
    assert torch.equal(out, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_without_any_key_are_finite_forward_and_backward(dtype: torch.dtype) -> None:
    q, k, v, gate, mask, bias = (x.to(dtype) for x in make())
    mask[0, 1] = 0.0
    leaves = [x.requires_grad_() for x in (q, k, v, gate, bias)]
    out = attention(q, k, v, gate, mask, bias)
    assert out.dtype == dtype
    assert out.isfinite().all()
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in leaves)


def test_columns_through_transposed_views() -> None:
    q, k, v, gate, mask, bias = make()
    swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, gate)]
    torch.testing.assert_close(
        attention(*swapped, mask_BRK=mask, bias_BHQK=bias), attention(q, k, v, gate, mask, bias)
    )


def test_one_mask_row_serves_all_rows() -> None:
    q, k, v, gate, mask, _ = make()
    one = mask[:, :1]
    expected = attention(q, k, v, gate, one.expand_as(mask), None)
    assert torch.equal(attention(q, k, v, gate, one, None), expected)


def test_gradients() -> None:
    q, k, v, gate, mask, bias = make(1, 2, 3, 2, 2)
    leaves = [x.requires_grad_() for x in (q, k, v, gate, bias)]
    assert torch.autograd.gradcheck(
        lambda q, k, v, gate, bias: attention(q, k, v, gate, mask, bias), leaves
    )
