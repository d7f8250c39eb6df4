"""Attention of one query at each position to a few keys there, against the float64 reference."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from scalefold.ops import pointwise_attention as reference
from scalefold_kernels.bench.agreement import FACTOR, error
from scalefold_kernels.ops.pointwise_attention import pointwise_attention

# float32: a softmax of a few numbers.
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def arguments(
    batch: int, keys: int, positions: int, heads: int, channels: int, device: torch.device
) -> tuple[list[Tensor], Tensor]:
    """q, k, v, the result's gradient; and a mask that takes some or all keys."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, positions, heads, channels), (batch, keys, positions, heads, channels)]
    tensors = [torch.randn(shapes[i], generator=generator) for i in (0, 1, 1, 0)]
    mask = torch.ones(batch, keys)
    for sample in range(batch):
        mask[sample, : min(keys - 1, sample)] = 0
    return [t.to(device) for t in tensors], mask.to(device)


def run(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], mask: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    *inputs, grad = (t.to(dtype, copy=True) for t in tensors)
    leaves = [t.requires_grad_() for t in inputs]
    out = function(*leaves, mask)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


@pytest.mark.parametrize(
    "sizes", [(3, 2, 5, 4, 16), (1, 4, 130, 3, 8), (2, 1, 7, 1, 5), (5, 4, 1, 2, 12)]
)
def test_value_and_gradients(
    sizes: tuple[int, ...], device: torch.device, poisoned_memory: None
) -> None:
    tensors, mask = arguments(*sizes, device=device)
    ours = run(pointwise_attention, tensors, mask, torch.float32)
    expected = run(reference.pointwise_attention, tensors, mask, torch.float64)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **CLOSE)


def test_without_any_key_is_as_the_reference(device: torch.device) -> None:
    # In float32 on both sides: there, 1e9 leaves nothing of a logit, and all keys count alike.
    tensors, mask = arguments(2, 3, 6, 2, 8, device)
    mask[1] = 0
    ours = run(pointwise_attention, tensors, mask, torch.float32)
    expected = run(reference.pointwise_attention, tensors, mask, torch.float32)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    torch.testing.assert_close(ours[0][1], tensors[2][1].mean(0), **CLOSE)


def test_strided_inputs(device: torch.device) -> None:
    (q, k, v, _), mask = arguments(2, 3, 6, 2, 8, device)
    apart = [t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in (q, k, v)]
    assert torch.equal(pointwise_attention(*apart, mask), pointwise_attention(q, k, v, mask))


def test_wrong_shapes_are_named(device: torch.device) -> None:
    (q, k, v, _), mask = arguments(2, 3, 6, 2, 8, device)
    with pytest.raises(ValueError, match=r"\(2, 3, 6, 2, 8\)"):
        pointwise_attention(q, k[:, :2], v, mask)
    with pytest.raises(ValueError, match="the same for all tensors"):
        pointwise_attention(q.half(), k, v, mask)


def test_registered_as_torch_expects(device: torch.device) -> None:
    (q, k, v, _), mask = arguments(2, 3, 4, 2, 8, device)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    torch.library.opcheck(torch.ops.scalefold.pointwise_attention, (*leaves, mask))


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(1, 4, 65536, 4, 16), (2, 4, 1000, 8, 8)])
def test_bfloat16(sizes: tuple[int, ...], device: torch.device, poisoned_memory: None) -> None:
    tensors, mask = arguments(*sizes, device=device)
    tensors = [t.bfloat16() for t in tensors]
    exact = run(reference.pointwise_attention, tensors, mask, torch.float64)
    torch_s = run(reference.pointwise_attention, tensors, mask, torch.bfloat16)
    ours = run(pointwise_attention, tensors, mask, torch.bfloat16)
    for mine, theirs, value in zip(ours, torch_s, exact, strict=True):
        assert error(mine, value) <= FACTOR * max(error(theirs, value), 2.0**-9)
