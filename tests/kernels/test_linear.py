"""Linear map added to a residual, with dropout: against the reference in float64."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from scalefold.ops import linear as reference
from scalefold.ops.dropout import Dropout, dropout_mask
from scalefold_kernels.bench.agreement import FACTOR, error
from scalefold_kernels.ops.linear import residual_linear
from scalefold_kernels.ops.normed_projection import normed_projection

LAYER, RATE = 17, 0.25
# float32: sums of at most some hundred products, each rounded once.
CLOSE = {"atol": 2e-5, "rtol": 2e-5}

# (shape of x, inputs, shared dimension; 0 for no dropout)
CASES: list[tuple[tuple[int, ...], int, int | None]] = [
    ((2, 3, 21, 16), 16, 0),
    ((2, 3, 21, 24), 12, -3),
    ((1, 5, 70, 8), 20, -3),
    ((2, 3, 5, 24), 12, -2),
    ((1, 2, 7, 16), 16, -1),
    ((1, 2, 7, 16), 16, None),
    ((2, 9, 16), 8, None),
    ((2, 9, 16), 8, -2),
    ((3, 16), 32, None),
    ((1, 3, 5, 260), 6, -3),  # wider than what is fused
    ((1, 3, 5, 6), 260, 0),
]


def draw(*shape: int, seed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def key(batch: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-(2**62), 2**62, (batch,), generator=generator).to(device)


def arguments(
    shape: Sequence[int], inputs: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """x, h, weight, bias."""
    *rows, channels = shape
    shapes = [tuple(shape), (*rows, inputs), (channels, inputs), (channels,)]
    return [draw(*s, seed=i, device=device, dtype=dtype) for i, s in enumerate(shapes)]


def dropout(shape: Sequence[int], shared_dim: int | None, device: torch.device) -> Dropout | None:
    return None if shared_dim == 0 else Dropout(key(shape[0], device), LAYER, RATE, shared_dim)


def run(
    function: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    drop: Dropout | None,
    grad: Tensor,
    dtype: torch.dtype,
) -> list[Tensor]:
    leaves = [t.detach().to(dtype, copy=True).requires_grad_() for t in tensors]
    out = function(*leaves, drop)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype))]


@pytest.mark.parametrize(("shape", "inputs", "shared_dim"), CASES)
def test_value_and_gradients(
    shape: tuple[int, ...],
    inputs: int,
    shared_dim: int | None,
    device: torch.device,
    poisoned_memory: None,
) -> None:
    tensors, drop = arguments(shape, inputs, device), dropout(shape, shared_dim, device)
    grad = draw(*shape, seed=9, device=device, dtype=torch.float32)
    ours = run(residual_linear, tensors, drop, grad, torch.float32)
    expected = run(reference.residual_linear, tensors, drop, grad, torch.float64)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **CLOSE)


@pytest.mark.parametrize(("shape", "inputs", "shared_dim"), [c for c in CASES if c[2] != 0])
def test_mask_is_the_reference_s(
    shape: tuple[int, ...], inputs: int, shared_dim: int | None, device: torch.device
) -> None:
    size = list(shape[1:])
    if shared_dim is not None:
        size[shared_dim] = 1
    keep = dropout_mask(key(shape[0], device), LAYER, RATE, size).expand(shape)
    x, h = torch.zeros(shape, device=device), torch.zeros(*shape[:-1], inputs, device=device)
    weight, bias = torch.zeros(shape[-1], inputs, device=device), torch.ones(shape[-1])
    drop = dropout(shape, shared_dim, device)
    out = residual_linear(x, h, weight, bias.to(device), drop)
    assert torch.equal(out != 0, keep)
    # Backward's: one input that is 1 makes the gradient of one weight a sum over kept elements.
    (grad_bias,) = torch.autograd.grad(
        residual_linear(x, h, weight, leaf := bias.to(device).requires_grad_(), drop).sum(), leaf
    )
    kept = keep.flatten(0, -2).sum(0) / (1 - RATE)
    torch.testing.assert_close(grad_bias, kept.to(grad_bias.dtype), rtol=1e-6, atol=0)


def test_strided_inputs(device: torch.device) -> None:
    x, h, weight, bias = arguments((2, 3, 5, 16), 8, device)
    drop = dropout((2,), -3, device)
    expected = residual_linear(x, h, weight, bias, drop)
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, h)]
    transposed = weight.t().contiguous().t()
    assert torch.equal(
        residual_linear(*strided, weight=transposed, bias=bias, dropout=drop), expected
    )


def test_shard_along_the_shared_dimension_sees_the_whole_s_mask(device: torch.device) -> None:
    x, h, weight, bias = arguments((1, 8, 6, 16), 16, device)
    drop = dropout((1,), -3, device)
    whole = residual_linear(x, h, weight, bias, drop)
    assert torch.equal(residual_linear(x[:, 4:], h[:, 4:], weight, bias, drop), whole[:, 4:])


def test_no_rows(device: torch.device) -> None:
    tensors = [t.requires_grad_() for t in arguments((0, 2, 3, 8), 4, device)]
    out = residual_linear(*tensors, dropout=None)
    assert out.shape == (0, 2, 3, 8)
    assert (torch.autograd.grad(out.sum(), tensors[2])[0] == 0).all()


def test_wrong_arguments_are_named(device: torch.device) -> None:
    x, h, weight, bias = arguments((2, 3, 8), 4, device)
    with pytest.raises(ValueError, match=r"\(2, 3, 7\).*\(2, 3, 8\)|\(2, 3, 8\).*\(2, 3, 7\)"):
        residual_linear(x[..., 1:], h, weight, bias, None)
    with pytest.raises(ValueError, match="the same for all tensors"):
        residual_linear(x.half(), h, weight, bias, None)
    with pytest.raises(ValueError, match="shared_dim"):
        residual_linear(x, h, weight, bias, dropout((2,), -3, device))
    with pytest.raises(ValueError, match=r"\b2\b.*\(1,\)"):
        residual_linear(x, h, weight, bias, dropout((1,), -2, device))


@pytest.mark.parametrize("shared_dim", [0, -3])
def test_registered_as_torch_expects(shared_dim: int, device: torch.device) -> None:
    tensors = [t.requires_grad_() for t in arguments((1, 2, 3, 8), 4, device)]
    drop = dropout((1,), shared_dim, device) or (None, 0, 0.0, None)
    torch.library.opcheck(torch.ops.scalefold.residual_linear, (*tensors, *drop))


def test_attention_s_ends_compile_whole(device: torch.device) -> None:
    x, _, weight, bias = arguments((1, 3, 5, 16), 8, device)
    norm = [draw(16, seed=s, device=device, dtype=torch.float32) for s in (5, 6)]
    first = draw(8, 16, seed=7, device=device, dtype=torch.float32)
    leaves = [t.requires_grad_() for t in (x, *norm, first, weight, bias)]
    drop = dropout((1,), -3, device)

    def update(x, norm_weight, norm_bias, first, weight, bias):
        h, x = normed_projection(x, norm_weight, norm_bias, [first], [None])
        return residual_linear(x, h, weight, bias, drop)

    def results(function):
        out = function(*leaves)
        return out, *torch.autograd.grad(out.square().sum(), leaves)

    compiled = results(torch.compile(update, backend="aot_eager", fullgraph=True))
    for ours, eager in zip(compiled, results(update), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0)


GPU_CASES = [
    ((1, 256, 256, 128), 128, -3),
    ((1, 256, 256, 128), 128, -2),
    ((1, 97, 130, 128), 128, None),
    ((4, 70, 65, 64), 64, -3),
    ((1, 128, 256, 256), 256, -3),
    ((1, 128, 256, 256), 256, 0),
    ((1, 1024, 64, 64), 64, 0),
    ((1, 33, 17, 48), 100, -2),
    # Kernels for Hopper: eights of lines in several samples, odd lines in one, odd positions.
    ((2, 16, 70, 72), 40, -3),
    ((1, 11, 67, 200), 72, -3),
    ((2, 5, 70, 200), 120, -2),
    ((3, 5, 128, 200), 72, -3),  # not for them
    ((1, 3, 333, 136), 248, 0),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("shape", "inputs", "shared_dim"), GPU_CASES)
def test_precision(
    shape: tuple[int, ...],
    inputs: int,
    shared_dim: int | None,
    dtype: torch.dtype,
    device: torch.device,
    poisoned_memory: None,
) -> None:
    tensors, drop = arguments(shape, inputs, device, dtype), dropout(shape, shared_dim, device)
    grad = draw(*shape, seed=9, device=device, dtype=dtype)
    exact = run(reference.residual_linear, tensors, drop, grad, torch.float64)
    torch_s = run(reference.residual_linear, tensors, drop, grad, dtype)
    ours = run(residual_linear, tensors, drop, grad, dtype)
    for mine, theirs, value in zip(ours, torch_s, exact, strict=True):
        floor = torch.finfo(dtype).eps / 2
        assert error(mine, value) <= FACTOR * max(error(theirs, value), floor)


@pytest.mark.gpu
def test_graph_capture_gives_the_same_bits(device: torch.device) -> None:
    tensors = [t.requires_grad_() for t in arguments((1, 64, 64, 128), 128, device, torch.bfloat16)]
    drop = dropout((1,), -3, device)

    def step() -> tuple[Tensor, ...]:
        out = residual_linear(*tensors, dropout=drop)
        return (out, *torch.autograd.grad(out.square().sum(), tensors))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = [t.clone() for t in step()]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
