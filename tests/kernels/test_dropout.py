"""Dropout + residual: the reference's mask bit for bit, its values and gradients to rounding."""

import pytest
import torch
from torch import Tensor

from scalefold.ops import dropout as reference
from scalefold_kernels.dropout import op as launches
from scalefold_kernels.dropout import residual_dropout

LAYER, RATE = 17, 0.25
EPS = torch.finfo(torch.float32).eps

SHAPES = [
    ((2, 5, 7, 6), None),
    ((2, 5, 7, 6), -1),
    ((2, 5, 7, 6), -2),
    ((2, 21, 9, 70), -3),
    ((2, 33, 5, 16), -2),
    ((3, 9, 16), None),
    ((3, 9, 16), -2),
    ((2, 33), None),
    ((20, 33), -1),
]


def _key(batch: int, device: torch.device) -> Tensor:
    torch.manual_seed(3)
    return torch.randint(-(2**62), 2**62, (batch,)).to(device)


@pytest.mark.parametrize(("shape", "shared_dim"), SHAPES)
def test_mask_is_the_reference_s(
    shape: tuple[int, ...], shared_dim: int | None, device: torch.device
) -> None:
    key = _key(shape[0], device)
    ones = torch.ones(shape, device=device)
    out = residual_dropout(torch.zeros_like(ones), ones, key, LAYER, RATE, shared_dim)
    size = list(shape[1:])
    if shared_dim is not None:
        size[shared_dim] = 1
    keep = reference.dropout_mask(key, LAYER, RATE, size).expand(shape)
    assert torch.equal(out != 0, keep)
    assert keep.any()
    assert not keep.all()


@pytest.mark.parametrize(("shape", "shared_dim"), SHAPES)
def test_value_and_gradients(
    shape: tuple[int, ...],
    shared_dim: int | None,
    device: torch.device,
    poisoned_memory: None,
) -> None:
    key = _key(shape[0], device)
    tensors = [torch.randn(shape, device=device) for _ in range(3)]
    results = []
    for op, dtype in (
        (residual_dropout, torch.float32),
        (reference.residual_dropout, torch.float64),
    ):
        x, update, gradient = (t.to(dtype, copy=True) for t in tensors)
        x.requires_grad_()
        update.requires_grad_()
        out = op(x, update, key, LAYER, RATE, shared_dim)
        results.append((out, *torch.autograd.grad(out, (x, update), gradient)))
    # Two or three roundings each.
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=3 * EPS, atol=6 * EPS)


def test_strided_inputs(device: torch.device) -> None:
    key = _key(2, device)
    x, update = torch.randn(2, 2, 6, 7, 5, device=device).unbind()
    expected = residual_dropout(x, update, key, LAYER, RATE, -2)
    x = x.transpose(1, 2).contiguous().transpose(1, 2)
    update = update.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    assert torch.equal(residual_dropout(x, update, key, LAYER, RATE, -2), expected)
    one_row = update[:, :1].expand_as(update)
    assert torch.equal(
        residual_dropout(x, one_row, key, LAYER, RATE, -2),
        residual_dropout(x, one_row.contiguous(), key, LAYER, RATE, -2),
    )


def test_more_columns_than_a_launch_has_programs(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, update = torch.randn(2, 1, 9, 16, 24, device=device).unbind()
    expected = residual_dropout(x, update, _key(1, device), LAYER, RATE, None)
    monkeypatch.setattr(launches, "MAX_GRID", 2)
    assert torch.equal(residual_dropout(x, update, _key(1, device), LAYER, RATE, None), expected)


def test_shard_along_the_shared_dimension_sees_the_whole_s_mask(device: torch.device) -> None:
    key = _key(1, device)
    x, update = torch.randn(2, 1, 8, 6, 5, device=device).unbind()
    whole = residual_dropout(x, update, key, LAYER, RATE, -3)
    half = residual_dropout(x[:, 4:], update[:, 4:], key, LAYER, RATE, -3)
    assert torch.equal(whole[:, 4:], half)


def test_arguments_are_checked(device: torch.device) -> None:
    x = torch.zeros(2, 3, 4, device=device)
    with pytest.raises(ValueError, match=r"x \(2, 2, 4\), .* update \(2, 3, 4\)"):
        residual_dropout(x[:, 1:], x, _key(2, device), LAYER, RATE, -1)
    with pytest.raises(ValueError, match=r"2 samples .* found \(1,\) of torch\.int64"):
        residual_dropout(x, x, _key(1, device), LAYER, RATE, -1)
    with pytest.raises(ValueError, match=r"rate of 0 to below 1, found 1\.0"):
        residual_dropout(x, x, _key(2, device), LAYER, 1.0, -1)
    with pytest.raises(ValueError, match="shared_dim"):
        residual_dropout(x, x, _key(2, device), LAYER, RATE, -3)
    with pytest.raises(ValueError, match="dimensions"):
        residual_dropout(x[None, None], x[None, None], _key(1, device), LAYER, RATE, None)


def test_opcheck(device: torch.device) -> None:
    x, update = torch.randn(2, 2, 3, 4, 8, device=device).unbind()
    x.requires_grad_()
    update.requires_grad_()
    torch.library.opcheck(
        torch.ops.scalefold.residual_dropout, (x, update, _key(2, device), LAYER, RATE, -3)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("shared_dim", [None, -3, -2])
@pytest.mark.parametrize("shape", [(1, 256, 256, 128), (2, 97, 130, 64), (1, 3, 384, 384)])
def test_bfloat16(shape: tuple[int, ...], shared_dim: int | None, device: torch.device) -> None:
    key = _key(shape[0], device)
    tensors = [torch.randn(shape, device=device).bfloat16() for _ in range(3)]
    results = []
    for op, dtype in (
        (residual_dropout, torch.bfloat16),
        (reference.residual_dropout, torch.bfloat16),
        (reference.residual_dropout, torch.float64),
    ):
        x, update, gradient = (t.to(dtype, copy=True).requires_grad_() for t in tensors)
        out = op(x, update, key, LAYER, RATE, shared_dim)
        results.append((out, *torch.autograd.grad(out, (x, update), gradient)))
    for ours, torch_s, exact in zip(*results, strict=True):
        assert (ours - exact).norm() <= 2 * (torch_s - exact).norm()
    # The mask, from the gradient of the update: a sum with x may round to 0 in one type alone.
    of_kernel, _, of_reference = (gradients[-1] for gradients in results)
    assert torch.equal(of_kernel == 0, of_reference == 0)
