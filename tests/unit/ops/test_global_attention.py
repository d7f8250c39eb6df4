import pytest
import torch
from tests.unit.ops.draws import draw
from torch.nn import functional

from scalefold.ops.attention import attention
from scalefold.ops.global_attention import MEAN_EPS, global_attention

HEADS, HEAD, CHANNELS = 3, 4, 6


def make() -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """x, mask, parameters."""
    row, wide, narrow = (CHANNELS,), (HEADS * HEAD, CHANNELS), (HEAD, CHANNELS)
    shapes = row, row, wide, narrow, narrow, wide, wide[:1], wide[::-1], row
    parameters = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    mask = (draw(2, 5, 3, seed=20) > -0.8).double()
    mask[:, 0] = 1.0
    return draw(2, 5, 3, CHANNELS, seed=21), mask, parameters


def test_is_attention_of_one_query_with_shared_keys() -> None:
    x, mask, parameters = make()
    norm_weight, norm_bias, q, k, v, g, g_bias, o, o_bias = parameters
    normed = functional.layer_norm(x, (CHANNELS,), norm_weight, norm_bias, 1e-5).transpose(1, 2)
    columns = mask.transpose(1, 2)
    weight = (columns / (columns.sum(-1, keepdim=True) + MEAN_EPS))[..., None]
    query = ((weight * normed).sum(2, keepdim=True) @ q.T).unflatten(-1, (HEADS, HEAD))
    key, value = ((normed @ w.T)[..., None, :].expand(-1, -1, -1, HEADS, -1) for w in (k, v))
    heads = attention(query, key, value, None, columns, None).flatten(-2)
    update = (heads * torch.sigmoid(normed @ g.T + g_bias)) @ o.T + o_bias
    out = global_attention(x, mask, *parameters)
    torch.testing.assert_close(out, x + update.transpose(1, 2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_columns_without_any_row_are_finite_forward_and_backward(dtype: torch.dtype) -> None:
    x, mask, parameters = make()
    mask[0, :, 1] = 0.0
    leaves = [t.to(dtype).requires_grad_() for t in (x, *parameters)]
    out = global_attention(leaves[0], mask, *leaves[1:])
    assert out.dtype == dtype
    assert out.isfinite().all()
    out.sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in leaves)


def test_gradients() -> None:
    x, mask, parameters = make()
    leaves = [t.requires_grad_() for t in (x, *parameters)]
    assert torch.autograd.gradcheck(lambda x, *p: global_attention(x, mask, *p), leaves)
