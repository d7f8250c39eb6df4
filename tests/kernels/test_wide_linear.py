"""Linear map in float32 by three TF32 products: against the reference in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scalefold.ops import linear as reference
from scalefold_kernels.bench.agreement import FACTOR, ROUNDING, error
from scalefold_kernels.tiles import overridden
from scalefold_kernels.wide_linear import wide_linear, wide_linear_gradients

# float32: sums of at most some hundred products, each rounded once.
CLOSE = {"atol": 2e-5, "rtol": 2e-5}

# (rows, inputs, outputs)
CASES = [((2, 19), 16, 24), ((1, 70), 37, 6), ((5,), 3, 1), ((1, 2, 33), 40, 65)]


def arguments(
    rows: tuple[int, ...], inputs: int, outputs: int, device: torch.device
) -> list[Tensor]:
    """x, weight, bias, and the gradient of the result."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(*rows, inputs), (outputs, inputs), (outputs,), (*rows, outputs)]
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def run(
    function: Callable[..., Tensor], tensors: list[Tensor], relu: bool, dtype: torch.dtype
) -> list[Tensor]:
    *leaves, grad = (t.detach().to(dtype, copy=True) for t in tensors)
    out = function(*(t.requires_grad_() for t in leaves), relu)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), CASES)
def test_value_and_gradients(
    rows: tuple[int, ...],
    inputs: int,
    outputs: int,
    splits: int,
    relu: bool,
    device: torch.device,
    poisoned_memory: None,
) -> None:
    tensors = arguments(rows, inputs, outputs, device)
    sizes = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "num_warps": 4, "num_stages": 2}
    with overridden() as tiles:
        for table in ("wide_linear", "wide_linear_gradients"):
            tiles.force(table, **sizes, SPLITS=splits)
        ours = run(wide_linear, tensors, relu, torch.float32)
    expected = run(reference.wide_linear, tensors, relu, torch.float64)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **CLOSE)


@pytest.mark.parametrize("relu", [False, True])
def test_gradients_of_several_uses(relu: bool, device: torch.device, poisoned_memory: None) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = (2, 19, 24), (2, 19, 37), (2, 19, 24)
    uses = [[torch.randn(s, generator=generator).to(device) for _ in range(3)] for s in shapes]
    uses[1][2] = uses[1][2].transpose(0, 1).contiguous().transpose(0, 1)
    ours = wide_linear_gradients(*uses[:2], results=uses[2] if relu else None)
    grads, rows, results = ([x.double() for x in of] for of in uses)
    expected = reference.wide_linear_gradients(grads, rows, results if relu else None)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **CLOSE)


def test_uses_that_differ_are_named(device: torch.device) -> None:
    x, *_, grad = arguments((2, 19), 16, 24, device)
    with pytest.raises(ValueError, match="as many"):
        wide_linear_gradients([grad], [x, x], None)
    with pytest.raises(ValueError, match="alike but for the last"):
        wide_linear_gradients([grad], [x[:1]], None)
    with pytest.raises(ValueError, match="results have shapes"):
        wide_linear_gradients([grad], [x], [x])
    with pytest.raises(ValueError, match="float32"):
        wide_linear_gradients([grad.bfloat16()], [x], None)


def test_strided_inputs(device: torch.device) -> None:
    x, weight, bias, _ = arguments((2, 19), 16, 24, device)
    turned = weight.t().contiguous().t()
    aside = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(wide_linear(aside, turned, bias), wide_linear(x, weight, bias))


def test_no_rows(device: torch.device) -> None:
    x, weight, bias, _ = arguments((0, 2), 8, 4, device)
    out = wide_linear(x, weight.requires_grad_(), bias)
    assert out.shape == (0, 2, 4)
    assert (torch.autograd.grad(out.sum(), weight)[0] == 0).all()


def test_wrong_arguments_are_named(device: torch.device) -> None:
    x, weight, bias, _ = arguments((2, 19), 16, 24, device)
    with pytest.raises(ValueError, match=r"x \(2, 19, 15\).* must be \(24, 15\)"):
        wide_linear(x[..., 1:], weight, bias)
    with pytest.raises(ValueError, match="float32"):
        wide_linear(x.bfloat16(), weight, bias)


@pytest.mark.parametrize("relu", [False, True])
def test_registered_as_torch_expects(relu: bool, device: torch.device) -> None:
    *tensors, _ = arguments((1, 5), 8, 4, device)
    leaves = [t.requires_grad_() for t in tensors]
    torch.library.opcheck(torch.ops.scalefold.wide_linear, (*leaves, relu))
    x, *_, grad = arguments((1, 5), 8, 4, device)
    uses = [grad, grad], [x, x], [grad, grad] if relu else []
    torch.library.opcheck(torch.ops.scalefold.wide_linear_gradients, uses)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(384, 1152), (2112, 384), (384, 384), (384, 6), (128, 128)]
)
def test_as_precise_as_float32(inputs: int, outputs: int, device: torch.device) -> None:
    tensors = arguments((1, 256), inputs, outputs, device)
    exact = run(reference.wide_linear, tensors, True, torch.float64)
    torch_s = run(reference.wide_linear, tensors, True, torch.float32)
    ours = run(wide_linear, tensors, True, torch.float32)
    for a, b, value in zip(ours, torch_s, exact, strict=True):
        assert error(a, value) <= FACTOR * max(error(b, value), ROUNDING)
