"""Tensors of more than 2^31 elements: as right at their end as the same in slices."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from scalefold_kernels.bench.agreement import error
from scalefold_kernels.ops import triangle
from scalefold_kernels.ops.outer_product import outer_product_mean

LENGTH = 4224
"""Residues; their pairs with 128 channels are 1.06 * 2^31 elements, 4.6 GB in bfloat16."""

ROUNDED = 2.0**-8
"""Relative distance of two numbers that are each rounded to bfloat16."""

LAST = 8
"""Rows of residues at the end, all elements of which are beyond 2^31."""

DTYPE = torch.bfloat16


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """Given back at the end, since other tests may run at the same time."""
    yield
    torch.cuda.empty_cache()


def needs(gigabytes: float) -> None:
    """Skip the test where the GPU has less memory free."""
    free = torch.cuda.mem_get_info()[0] / 1e9
    if free < gigabytes:
        pytest.skip(f"needs {gigabytes} GB of memory; {free:.0f} are free")


def draw(
    *shapes: tuple[int, ...], device: torch.device, dtype: torch.dtype = DTYPE
) -> Iterator[Tensor]:
    """Normal numbers, others for each shape."""
    generator = torch.Generator(device).manual_seed(0)
    for shape in shapes:
        yield torch.randn(shape, generator=generator, device=device, dtype=dtype)


def evaluated(
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    grads: Sequence[Tensor],
) -> list[Tensor]:
    """Results, and gradients of all inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    found = torch.autograd.grad(results, leaves, grads)
    return [x.detach() for x in (*results, *found)]


def assert_sums_of(whole: Tensor, parts: Sequence[Tensor]) -> None:
    """The parts are rounded each, and so is the whole."""
    difference = torch.stack([part.double() for part in parts]).sum(0) - whole.double()
    sizes = sum(x.double().norm() for x in (whole, *parts))
    assert difference.norm() <= ROUNDED * sizes


@pytest.mark.gpu
@pytest.mark.parametrize("pair", [16, 128])  # the portable kernels; on Hopper, its own
def test_output_of_triangle_multiplication(pair: int, device: torch.device) -> None:
    needs(24 if pair == 16 else 56)
    length, hidden = LENGTH, 128
    pairs = [(1, length, length, pair)] * 3
    shapes = (hidden, 1, length, length), (hidden,), (hidden,), (pair, hidden), (pair,)
    z, gate, grad, product, *parameters = draw(*pairs, *shapes, device=device)
    product = product.permute(1, 2, 3, 0)
    dropout = torch.tensor([-7], device=device), 5, 0.25, -3  # rows share a mask

    def results(rows: slice) -> list[Tensor]:
        inputs = z[:, rows], product[:, rows], gate[:, rows], *parameters
        return evaluated(
            lambda *x: triangle.triangle_output(*x, dropout=dropout), inputs, [grad[:, rows]]
        )

    *whole, scale, shift, weight, bias = results(slice(None))
    of_whole = [x[:, -LAST:].clone() for x in whole]
    del whole
    step = -(-length // 4)
    sums = []
    for start in range(0, length, step):
        *part, of_scale, of_shift, of_weight, of_bias = results(slice(start, start + step))
        sums.append((of_scale, of_shift, of_weight, of_bias))
    for x, y in zip(of_whole, part, strict=True):
        assert error(x, y[:, -LAST:].double()) <= ROUNDED
    for x, parts in zip((scale, shift, weight, bias), zip(*sums, strict=True), strict=True):
        assert_sums_of(x, parts)


@pytest.mark.gpu
def test_products_of_triangle_multiplication(device: torch.device) -> None:
    needs(28)
    a, b, grad = draw(*[(128, 1, LENGTH, LENGTH)] * 3, device=device)

    def function(a: Tensor, b: Tensor) -> Tensor:
        a, b = (x.permute(1, 2, 3, 0) for x in (a, b))
        return triangle.triangle_product_outgoing(a, b).permute(3, 0, 1, 2)

    found = evaluated(function, (a, b), [grad])
    last = a[-1].float(), b[-1].float(), grad[-1].float()
    expected = last[0] @ last[1].mT, last[2] @ last[1], last[2].mT @ last[0]
    for x, y in zip(found, expected, strict=True):
        assert error(x[-1], y.double()) <= ROUNDED


@pytest.mark.gpu
@pytest.mark.parametrize("pair", [64, 128])
def test_projection_of_triangle_multiplication(pair: int, device: torch.device) -> None:
    """Half the residues: gradients of four projections lie in one tensor."""
    needs(24)
    length, hidden = LENGTH // 2, 128
    rows = [(1, length, length, n) for n in (pair, pair, hidden, hidden, pair)]
    shapes = [(pair,), (pair,), *[(hidden, pair), (hidden,)] * 4, (pair, pair), (pair,)]
    z, through, *others = draw(*rows, *shapes, device=device)
    grads, parameters = others[:3], [x / 8 for x in others[3:]]
    mask = torch.ones(1, length, length, device=device, dtype=z.dtype)

    def results(rows: slice) -> tuple[list[Tensor], list[Tensor]]:
        def function(z: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
            return triangle.triangle_projection(z, mask[:, rows], *parameters)

        of_rows = [grad[:, rows] for grad in (*grads, through)]
        found = evaluated(function, (z[:, rows], *parameters), of_rows)
        return found[:5], found[5:]

    by_row, sums = results(slice(None))
    of_whole = [x[:, -LAST:].clone() for x in by_row]
    del by_row
    half = length // 2
    _, first = results(slice(half))
    by_row, second = results(slice(half, length))
    for x, y in zip(of_whole, by_row, strict=True):
        assert error(x, y[:, -LAST:].double()) <= ROUNDED
    for whole, *parts in zip(sums, first, second, strict=True):
        assert_sums_of(whole, parts)


@pytest.mark.gpu
@pytest.mark.parametrize("num_seq", [8, 136])  # on Hopper: its own kernels, the portable ones
def test_outer_product_mean_of_channels_first(num_seq: int, device: torch.device) -> None:
    needs(32)
    first, operand = (128, 1, LENGTH, LENGTH), (1, num_seq, LENGTH, 8)
    shapes = first, first, operand, operand, (128, 64), (128,)
    z, grad, a, b, weight, bias = draw(*shapes, device=device)
    z, grad = (x.permute(1, 2, 3, 0) for x in (z, grad))
    count = torch.full((1, LENGTH, LENGTH), float(num_seq), device=device)

    def results(a: Tensor, count: Tensor, z: Tensor, grad: Tensor) -> list[Tensor]:
        def function(a: Tensor, z: Tensor) -> Tensor:
            return outer_product_mean(a, b, count, weight, bias, z)

        return evaluated(function, (a, z), [grad])

    end = slice(-LAST, None)
    few = a[:, :, end], count[:, end], z[:, end].contiguous(), grad[:, end].contiguous()
    out_last, grad_a_last, _ = results(*few)
    out, grad_a, _ = results(a, count, z, grad)
    assert error(out[:, end], out_last.double()) <= ROUNDED
    assert error(grad_a[:, :, end], grad_a_last.double()) <= ROUNDED
