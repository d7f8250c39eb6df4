"""Outer product mean: value and every gradient against the torch reference in float64."""

import pytest
import torch
from torch import Tensor

from scalefold.ops.outer_product import outer_product_mean as reference
from scalefold.ops.outer_product import outer_product_operands as reference_operands
from scalefold_kernels.ops.outer_product import hopper, outer_product_mean
from scalefold_kernels.ops.outer_product import op as contract
from scalefold_kernels.ops.outer_product_operands import outer_product_operands

FEW = 9
MANY = contract.FEW_SEQUENCES + 2

# B, S, I, J, C, Z
SHAPES = [
    (1, FEW, 6, 7, 8, 12),
    (2, FEW, 35, 33, 5, 24),
    (1, 1, 3, 2, 32, 16),
    (1, MANY, 5, 6, 8, 12),
    (2, MANY, 9, 35, 5, 7),
    (1, 3, 5, 6, 33, 4),  # more channels than the kernels for Hopper take
]


def _inputs(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Differentiable inputs; count; gradient of the result."""
    torch.manual_seed(0)
    batch, num_seq, size_i, size_j, channels, size_z = shape
    tensors = [
        torch.randn(batch, num_seq, size_i, channels),
        torch.randn(batch, num_seq, size_j, channels),
        torch.randn(size_z, channels**2) / channels,
        torch.randn(size_z),
        torch.randn(batch, size_i, size_j, size_z),
    ]
    # At least 1, so that no division by 1e-3 hides everything else in the norm.
    count = torch.randint(1, max(num_seq, 1) + 1, (batch, size_i, size_j)).float()
    gradient = torch.randn(batch, size_i, size_j, size_z)
    return [t.to(device, dtype) for t in tensors], count.to(device), gradient.to(device, dtype)


def _results(
    op: object, tensors: list[Tensor], count: Tensor, gradient: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    leaves = [t.detach().to(dtype).requires_grad_() for t in tensors]
    a, b, weight, bias, z = leaves
    out = op(a, b, count, weight, bias, z)
    return [out, *torch.autograd.grad(out, leaves, gradient.to(dtype))]


def _error(x: Tensor, exact: Tensor) -> float:
    return ((x.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("shape", SHAPES)
def test_value_and_gradients(
    shape: tuple[int, ...], device: torch.device, poisoned_memory: None
) -> None:
    inputs = _inputs(shape, device, torch.float32)
    exact = _results(reference, *inputs, torch.float64)
    # Random roundings of sums of S and of C * C or J * Z terms, in float32.
    tolerance = 8 * torch.finfo(torch.float32).eps
    for ours, expected in zip(
        _results(outer_product_mean, *inputs, torch.float32), exact, strict=True
    ):
        assert ours.shape == expected.shape
        assert _error(ours, expected) <= tolerance


@pytest.mark.parametrize("num_seq", [FEW, MANY])
def test_residues_without_a_common_sequence(num_seq: int, device: torch.device) -> None:
    (a, b, weight, bias, z), count, _ = _inputs((1, num_seq, 4, 5, 8, 6), device, torch.float32)
    a[:, :, 2] = 0
    count[:, 2] = 0
    out = outer_product_mean(a, b, count, weight, bias, z)
    torch.testing.assert_close(out[:, 2], z[:, 2] + bias / 1e-3)
    assert out.isfinite().all()


@pytest.mark.parametrize("num_seq", [FEW, MANY])
def test_strided_inputs(num_seq: int, device: torch.device) -> None:
    (a, b, weight, bias, z), count, _ = _inputs((2, num_seq, 6, 5, 8, 4), device, torch.float32)
    expected = outer_product_mean(a, b, count, weight, bias, z)
    a = a.transpose(1, 2).contiguous().transpose(1, 2)
    b = torch.stack([b, b], dim=-1)[..., 0]
    count, z = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (count, z))
    weight = weight.t().contiguous().t()
    assert torch.equal(outer_product_mean(a, b, count, weight, bias, z), expected)


def test_many_sequences_a_few_rows_at_a_time(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = _inputs((1, MANY, 7, 6, 8, 5), device, torch.float32)
    whole = _results(outer_product_mean, *inputs, torch.float32)
    monkeypatch.setattr(contract, "MAX_ELEMENTS", 3 * 8 * 6 * 8)
    for part, expected in zip(
        _results(outer_product_mean, *inputs, torch.float32), whole, strict=True
    ):
        torch.testing.assert_close(part, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("num_seq", [FEW, MANY])
def test_two_runs_give_the_same_bits(num_seq: int, device: torch.device) -> None:
    inputs = _inputs((1, num_seq, 6, 7, 8, 5), device, torch.float32)
    runs = [_results(outer_product_mean, *inputs, torch.float32) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_operands_with_sequences_last_are_taken_as_they_are(device: torch.device) -> None:
    (a, b, weight, bias, z), count, gradient = _inputs((2, FEW, 6, 5, 8, 4), device, torch.float32)
    expected = _results(outer_product_mean, [a, b, weight, bias, z], count, gradient, a.dtype)
    a, b = (x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for x in (a, b))
    found = _results(outer_product_mean, [a, b, weight, bias, z], count, gradient, a.dtype)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_shapes_and_types_are_checked(device: torch.device) -> None:
    inputs, count, _ = _inputs((1, 3, 4, 5, 8, 6), device, torch.float32)
    a, b, weight, bias, z = inputs
    with pytest.raises(ValueError, match=r"\bb\b.*\("):
        outer_product_mean(a, b[..., :7], count, weight, bias, z)
    with pytest.raises(ValueError, match="count"):
        outer_product_mean(a, b, count[:, :2], weight, bias, z)
    with pytest.raises(ValueError, match="float64"):
        outer_product_mean(a.double(), b, count, weight, bias, z)


@pytest.mark.parametrize("num_seq", [FEW, MANY])
def test_no_samples(num_seq: int, device: torch.device) -> None:
    inputs = _inputs((0, num_seq, 4, 5, 8, 6), device, torch.float32)
    out, *gradients = _results(outer_product_mean, *inputs, torch.float32)
    assert out.shape == (0, 4, 5, 6)
    assert not any(gradient.any() for gradient in gradients)


def test_no_sequences(device: torch.device) -> None:
    (a, b, weight, bias, z), count, _ = _inputs((1, 0, 4, 5, 8, 16), device, torch.float32)
    torch.testing.assert_close(
        outer_product_mean(a, b, 0 * count, weight, bias, z), z + bias / 1e-3
    )
    operand = torch.empty(4, 8, 0, dtype=torch.bfloat16)
    assert hopper.why_not("forward", operand, operand, weight)


@pytest.mark.parametrize("num_seq", [FEW, MANY])
def test_opcheck(num_seq: int, device: torch.device) -> None:
    (a, b, weight, bias, z), count, _ = _inputs((1, num_seq, 3, 4, 8, 5), device, torch.float32)
    for tensor in (a, b, weight, bias, z):
        tensor.requires_grad_()
    torch.library.opcheck(torch.ops.scalefold.outer_product_mean, ([a, b, count, weight, bias], z))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape",
    [
        (1, 128, 256, 256, 32, 128),
        (2, 60, 70, 129, 32, 128),
        (2, 64, 70, 129, 32, 128),
        (1, 40, 100, 37, 16, 64),
        (1, 8, 3, 5, 8, 16),
        (1, 300, 80, 96, 32, 128),
    ],
)
def test_bfloat16(shape: tuple[int, ...], device: torch.device) -> None:
    inputs = _inputs(shape, device, torch.bfloat16)
    exact = _results(reference, *inputs, torch.float64)
    plain = _results(reference, *inputs, torch.bfloat16)
    for ours, torch_s, expected in zip(
        _results(outer_product_mean, *inputs, torch.bfloat16), plain, exact, strict=True
    ):
        assert _error(ours, expected) <= 2 * _error(torch_s, expected)


# B, S, N, M, C
OPERANDS = [
    (1, 9, 6, 8, 8),
    (2, 35, 3, 24, 5),
    (1, 1, 2, 16, 32),
    (1, 130, 2, 64, 32),
    (1, 3, 2, 16, 33),  # more hidden channels than the kernels take
]


def _operand_inputs(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Differentiable inputs; mask; gradients of the results."""
    torch.manual_seed(0)
    batch, num_seq, num_res, channels, hidden = shape
    m = 2 * torch.randn(batch, num_seq, num_res, channels) + 0.5
    weights = (torch.randn(hidden, channels) / channels**0.5 for _ in range(2))
    norm = 1 + 0.1 * torch.randn(channels), torch.randn(channels)
    tensors = [m, *norm, *(t for weight in weights for t in (weight, torch.randn(hidden)))]
    mask = (torch.rand(batch, num_seq, num_res) < 0.8).float()
    grads = [torch.randn(batch, num_seq, num_res, hidden) for _ in range(2)] + [torch.randn_like(m)]
    return (
        [t.to(device, dtype) for t in tensors],
        mask.to(device),
        [t.to(device, dtype) for t in grads],
    )


def _operand_results(
    op: object, tensors: list[Tensor], mask: Tensor, grads: list[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """Both operands, and the gradients of m and all parameters."""
    leaves = [t.detach().to(dtype).requires_grad_() for t in tensors]
    results = op(leaves[0], mask, *leaves[1:])
    return [*results[:2], *torch.autograd.grad(results, leaves, [grad.to(dtype) for grad in grads])]


@pytest.mark.parametrize("shape", OPERANDS)
def test_operands_and_their_gradients(
    shape: tuple[int, ...], device: torch.device, poisoned_memory: None
) -> None:
    inputs = _operand_inputs(shape, device, torch.float32)
    exact = _operand_results(reference_operands, *inputs, torch.float64)
    # Random roundings of sums of M and of S * N terms, in float32.
    tolerance = 8 * torch.finfo(torch.float32).eps
    ours = _operand_results(outer_product_operands, *inputs, torch.float32)
    for found, expected in zip(ours, exact, strict=True):
        assert found.shape == expected.shape
        assert _error(found, expected) <= tolerance


def test_m_of_any_strides(device: torch.device) -> None:
    (m, *parameters), mask, _ = _operand_inputs((2, 5, 6, 8, 8), device, torch.float32)
    expected = outer_product_operands(m, mask, *parameters)
    m = torch.stack([m, m], -1)[..., 0].transpose(1, 2).clone().transpose(1, 2)
    mask = mask.transpose(1, 2).contiguous().transpose(1, 2)
    found = outer_product_operands(m, mask, *parameters)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_one_operand_alone_has_a_gradient(device: torch.device) -> None:
    (m, *parameters), mask, (grad, *_) = _operand_inputs((1, 5, 6, 8, 8), device, torch.float32)
    found = []
    for op in (outer_product_operands, reference_operands):
        m.requires_grad_()
        found.append(torch.autograd.grad(op(m, mask, *parameters)[1], m, grad)[0])
    assert _error(found[0], found[1].double()) <= 8 * torch.finfo(torch.float32).eps


def test_shapes_of_operands_are_checked(device: torch.device) -> None:
    (m, *parameters), mask, _ = _operand_inputs((1, 5, 6, 8, 8), device, torch.float32)
    with pytest.raises(ValueError, match=r"mask.*\("):
        outer_product_operands(m, mask[:, :4], *parameters)
    with pytest.raises(ValueError, match="bias_b"):
        outer_product_operands(m, mask, *parameters[:-1], bias_b=parameters[-1][:3])


def test_opcheck_of_operands(device: torch.device) -> None:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    (m, *parameters), mask, (a, *_) = _operand_inputs((1, 5, 6, 8, 8), device, dtype)
    arguments = m, mask, parameters
    torch.library.opcheck(torch.ops.scalefold.outer_product_operands, arguments)
    grads = torch.stack([a.permute(0, 2, 3, 1)] * 2)
    torch.library.opcheck(
        torch.ops.scalefold.outer_product_operands_backward, (grads, *arguments, m)
    )


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape", [(1, 128, 256, 256, 32), (2, 60, 70, 40, 16), (1, 1024, 256, 64, 32)]
)
def test_operands_in_bfloat16(shape: tuple[int, ...], device: torch.device) -> None:
    inputs = _operand_inputs(shape, device, torch.bfloat16)
    exact = _operand_results(reference_operands, *inputs, torch.float64)
    plain = _operand_results(reference_operands, *inputs, torch.bfloat16)
    ours = _operand_results(outer_product_operands, *inputs, torch.bfloat16)
    for found, torch_s, expected in zip(ours, plain, exact, strict=True):
        assert _error(found, expected) <= 2 * _error(torch_s, expected)
