"""Global attention, from LayerNorm to residual, against the float64 reference."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from scalefold.ops import global_attention as reference
from scalefold_kernels.bench.agreement import FACTOR, error
from scalefold_kernels.ops.global_attention import global_attention
from scalefold_kernels.ops.global_attention.op import _global_attention

# float32: sums over some hundred numbers.
CLOSE = {"atol": 2e-5, "rtol": 2e-5}

Sizes = tuple[int, int, int, int, int, int]
"""Samples, rows, columns, channels, heads, channels of a head."""


def arguments(sizes: Sizes, device: torch.device) -> tuple[list[Tensor], Tensor]:
    """x, parameters and the result's gradient; a mask of some rows."""
    batch, rows, columns, channels, heads, head = sizes
    generator = torch.Generator().manual_seed(0)

    def new(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=generator)

    every, depth = heads * head, channels**-0.5
    tensors = [
        2 * new(batch, rows, columns, channels) + 0.5,
        1 + new(channels, scale=0.1),
        new(channels, scale=0.1),
        new(every, channels, scale=2 * depth),
        new(head, channels, scale=2 * depth),
        new(head, channels, scale=depth),
        new(every, channels, scale=depth),
        new(every, scale=0.3),
        new(channels, every, scale=every**-0.5),
        new(channels, scale=0.1),
        new(batch, rows, columns, channels),
    ]
    mask = (torch.rand(batch, rows, columns, generator=generator) > 0.3).float()
    mask[:, 0] = 1
    return [t.to(device) for t in tensors], mask.to(device)


def run(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], mask: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """The result, and the gradients of x and the parameters."""
    *inputs, grad = (t.detach().to(dtype, copy=True) for t in tensors)
    leaves = [t.requires_grad_() for t in inputs]
    out = function(leaves[0], mask, *leaves[1:])
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


@pytest.mark.parametrize(
    "sizes", [(1, 70, 2, 8, 2, 4), (2, 37, 2, 24, 3, 5), (1, 33, 2, 16, 1, 4), (1, 40, 1, 9, 2, 16)]
)
def test_value_and_gradients(sizes: Sizes, device: torch.device, poisoned_memory: None) -> None:
    tensors, mask = arguments(sizes, device)
    ours = run(global_attention, tensors, mask, torch.float32)
    expected = run(reference.global_attention, tensors, mask, torch.float64)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **CLOSE)


def test_columns_without_any_row_are_as_in_the_reference(device: torch.device) -> None:
    # In float32 on both sides: there, 1e9 leaves nothing of a logit, and all rows count alike.
    tensors, mask = arguments((1, 20, 3, 8, 2, 4), device)
    mask[:, :, 1] = 0
    ours = run(global_attention, tensors, mask, torch.float32)
    expected = run(reference.global_attention, tensors, mask, torch.float32)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def test_strided_inputs(device: torch.device) -> None:
    tensors, mask = arguments((2, 12, 3, 8, 2, 4), device)
    swapped = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in tensors]
    swapped_mask = mask.transpose(1, 2).contiguous().transpose(1, 2)
    # A transposed view of x, whose channels lie together, is read as it is.
    swapped[0] = tensors[0].transpose(1, 2).contiguous().transpose(1, 2)
    expected = run(global_attention, tensors, mask, torch.float32)
    found = run(global_attention, swapped, swapped_mask, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_nothing_to_do(device: torch.device) -> None:
    tensors, mask = arguments((1, 4, 0, 8, 2, 4), device)
    out, *grads = run(global_attention, tensors, mask, torch.float32)
    assert out.shape == (1, 4, 0, 8)
    assert not any(grad.any() for grad in grads)


def test_wrong_arguments_are_named(device: torch.device) -> None:
    (x, *parameters, _), mask = arguments((1, 6, 2, 8, 2, 4), device)
    with pytest.raises(ValueError, match=r"mask.*\(1, 5, 2\).*\(1, 6, 2\)"):
        global_attention(x, mask[:, :5], *parameters)
    with pytest.raises(ValueError, match=r"value_weight.*\(3, 8\).*\(4, 8\)"):
        global_attention(x, mask, *parameters[:4], parameters[4][:3], *parameters[5:])
    with pytest.raises(ValueError, match=r"float16.*float32"):
        global_attention(x.half(), mask, *parameters)


def test_registered_as_torch_expects(device: torch.device) -> None:
    (x, *parameters, _), mask = arguments((1, 4, 2, 8, 2, 4), device)
    leaves = [t.clone().requires_grad_() for t in (x, *parameters)]
    torch.library.opcheck(_global_attention, (leaves[0], mask, leaves[1:]))


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(1, 1024, 64, 64, 8, 8), (2, 1000, 9, 64, 8, 8)])
def test_bfloat16(sizes: Sizes, device: torch.device, poisoned_memory: None) -> None:
    tensors, mask = arguments(sizes, device)
    tensors = [t.bfloat16() for t in tensors]
    exact = run(reference.global_attention, tensors, mask, torch.float64)
    torch_s = run(reference.global_attention, tensors, mask, torch.bfloat16)
    ours = run(global_attention, tensors, mask, torch.bfloat16)
    for mine, theirs, value in zip(ours, torch_s, exact, strict=True):
        assert error(mine, value) <= FACTOR * max(error(theirs, value), 2.0**-9)
