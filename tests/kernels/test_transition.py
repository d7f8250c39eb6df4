"""Transition: value and every gradient against the torch reference in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scalefold.ops.transition import transition as reference
from scalefold_kernels import gpu
from scalefold_kernels.ops.transition import transition, triton
from scalefold_kernels.ops.transition.hopper.parameters import transition_finish_kernel
from scalefold_kernels.tiles import find_config

# Shape of x without channels, C, H
SHAPES = [((1, 5, 7), 8, 32), ((2, 3, 11), 12, 50), ((33,), 64, 128), ((1,), 5, 3)]


def _inputs(
    shape: tuple[int, ...], channels: int, hidden: int, device: torch.device, dtype: torch.dtype
) -> list[Tensor]:
    """x, the six parameters, and the gradient of the result."""
    torch.manual_seed(0)
    tensors = [
        2 * torch.randn(*shape, channels) + 0.5,
        1 + 0.1 * torch.randn(channels),
        0.1 * torch.randn(channels),
        torch.randn(hidden, channels) * channels**-0.5,
        0.1 * torch.randn(hidden),
        torch.randn(channels, hidden) * hidden**-0.5,
        0.1 * torch.randn(channels),
        torch.randn(*shape, channels),
    ]
    return [t.to(device, dtype) for t in tensors]


def _results(op: Callable[..., Tensor], inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    leaves = [t.detach().to(dtype, copy=True).requires_grad_() for t in inputs[:-1]]
    out = op(*leaves)
    return [out, *torch.autograd.grad(out, leaves, inputs[-1].to(dtype))]


def _error(x: Tensor, exact: Tensor) -> float:
    return ((x.double() - exact).norm() / exact.norm()).item()


def _check_precision(inputs: list[Tensor]) -> None:
    """In bfloat16 no value or gradient may be more than twice as wrong as torch's."""
    exact = _results(reference, inputs, torch.float64)
    plain = _results(reference, inputs, torch.bfloat16)
    ours = _results(transition, inputs, torch.bfloat16)
    for x, torch_s, expected in zip(ours, plain, exact, strict=True):
        assert _error(x, expected) <= 2 * _error(torch_s, expected)


@pytest.mark.parametrize(("shape", "channels", "hidden"), SHAPES)
def test_value_and_gradients(
    shape: tuple[int, ...], channels: int, hidden: int, device: torch.device, poisoned_memory: None
) -> None:
    inputs = _inputs(shape, channels, hidden, device, torch.float32)
    exact = _results(reference, inputs, torch.float64)
    plain = _results(reference, inputs, torch.float32)
    # Where a sum is short, one rounding of its result may be all the error that torch makes.
    rounding = torch.finfo(torch.float32).eps
    for ours, torch_s, expected in zip(
        _results(transition, inputs, torch.float32), plain, exact, strict=True
    ):
        assert ours.shape == expected.shape
        assert _error(ours, expected) <= 2 * max(_error(torch_s, expected), rounding)


def test_strided_input(device: torch.device) -> None:
    x, *parameters, _ = _inputs((3, 4, 5), 16, 32, device, torch.float32)
    expected = transition(x, *parameters)
    for strided in (
        x.transpose(0, 1).contiguous().transpose(0, 1),
        torch.cat([x, x], dim=-1)[..., :16],
        x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    ):
        assert torch.equal(transition(strided, *parameters), expected)
    transposed = [p.t().contiguous().t() if p.dim() == 2 else p for p in parameters]
    assert torch.equal(transition(x, *transposed), expected)


def test_no_rows(device: torch.device) -> None:
    x, *parameters, _ = _inputs((0, 4), 16, 32, device, torch.float32)
    assert transition(x, *parameters).shape == (0, 4, 16)


@pytest.mark.parametrize(("limit", "value"), [("MAX_HIDDEN_ELEMENTS", 10 * 32), ("MAX_ROWS", 9)])
def test_a_few_rows_at_a_time(
    limit: str, value: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = _inputs((23,), 16, 32, device, torch.float32)
    whole = _results(transition, inputs, torch.float32)
    monkeypatch.setattr(triton, limit, value)
    for part, expected in zip(_results(transition, inputs, torch.float32), whole, strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-5, atol=1e-5)


def test_shapes_and_types_are_checked(device: torch.device) -> None:
    x, *parameters, _ = _inputs((3,), 16, 32, device, torch.float32)
    with pytest.raises(ValueError, match="norm_weight"):
        transition(x[..., :8], *parameters)
    with pytest.raises(ValueError, match="float64"):
        transition(x.double(), *parameters)


def test_opcheck(device: torch.device) -> None:
    *tensors, _ = _inputs((2, 3), 16, 32, device, torch.float32)
    x, *parameters = (t.requires_grad_() for t in tensors)
    torch.library.opcheck(torch.ops.scalefold.transition, (x, parameters, True))


def test_rows_are_kept_for_backward_only(device: torch.device) -> None:
    x, *parameters, _ = _inputs((2, 3), 16, 32, device, torch.float32)
    saved: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        plain = transition(x, *parameters)
        assert not saved
        assert torch.equal(transition(x.requires_grad_(), *parameters), plain)
    assert (6, 16) in saved
    _, *kept = torch.ops.scalefold.transition(x.detach(), parameters, False)
    assert all(tensor.numel() == 0 for tensor in kept)


def test_what_follows_from_sums_over_rows(device: torch.device) -> None:
    rows, channels, hidden = 8, 12, 20
    torch.manual_seed(0)
    d, normed = torch.randn(rows, hidden), torch.randn(rows, channels)
    out, grad = torch.randn(rows, hidden), torch.randn(rows, channels)
    up, weight_sums = torch.randn(hidden, channels), torch.randn(rows, channels)
    products = torch.stack([_by_parts(d, normed), _by_parts(out, grad)])
    sums = d.unflatten(0, (2, -1)).sum(1)
    arguments = [t.to(device) for t in (products, sums, weight_sums, grad, up)]
    config = find_config("transition_finish", "cpu", {"C": channels, "H": hidden})
    grid = -(-hidden // config["BLOCK_H"]) + 3, -(-channels // config["BLOCK_C"])
    shapes = (2, channels), (hidden, channels), (hidden,), (channels, hidden), (channels,)
    results = [torch.full(shape, float("nan"), device=device) for shape in shapes]
    transition_finish_kernel[grid](*arguments, *results, 2, rows, C=channels, H=hidden, **config)
    norm = torch.stack([weight_sums.sum(0), (d @ up).sum(0)])
    expected = norm, d.t() @ normed, d.sum(0), grad.t() @ out, grad.sum(0)
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.cpu(), wanted, rtol=1e-4, atol=1e-4)


def _by_parts(x: Tensor, y: Tensor) -> Tensor:
    """``x^T y`` over each half of the rows."""
    return torch.stack([a.t() @ b for a, b in zip(x.chunk(2), y.chunk(2), strict=True)])


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "hopper"])
@pytest.mark.parametrize(
    ("shape", "channels", "hidden"),
    [
        ((1, 256, 256), 128, 512),
        ((1, 128, 256), 256, 1024),
        ((1, 300, 111), 64, 128),
        ((997,), 24, 96),
        ((70, 33), 200, 304),
        ((3, 50), 16, 8),
    ],
)
def test_bfloat16(
    backend: str,
    shape: tuple[int, ...],
    channels: int,
    hidden: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    poisoned_memory: None,
) -> None:
    if backend == "triton":
        monkeypatch.setattr(gpu, "has_gluon", lambda: False)
    elif reason := gpu.why_not_hopper(device):
        pytest.skip(reason)
    inputs = _inputs(shape, channels, hidden, device, torch.bfloat16)
    _check_precision(inputs)


@pytest.mark.gpu
def test_norm_of_weight_zero(device: torch.device) -> None:
    """No gradient is made by dividing by a weight."""
    inputs = _inputs((500,), 64, 256, device, torch.bfloat16)
    inputs[1][::3] = 0.0
    _check_precision(inputs)


@pytest.mark.gpu
def test_two_runs_give_the_same_bits(device: torch.device) -> None:
    inputs = _inputs((40000,), 128, 512, device, torch.bfloat16)
    runs = [_results(transition, inputs, torch.bfloat16) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
