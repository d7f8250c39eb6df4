"""Attention by features, pairs and distances of points: against the reference in float64."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from scalefold.ops import point_attention as reference
from scalefold_kernels.bench.agreement import FACTOR, ROUNDING, error
from scalefold_kernels.point_attention import point_attention, point_attention_pair_gradient
from scalefold_kernels.tiles import overridden


class Sizes(NamedTuple):
    B: int
    N: int
    H: int
    C: int
    P: int
    V: int
    Z: int


CASES = [Sizes(2, 19, 3, 16, 4, 5, 20), Sizes(1, 37, 2, 8, 2, 3, 32), Sizes(1, 5, 17, 3, 1, 1, 6)]
MASKED = -1e5
WEIGHT = 0.14
"""Of squared distances at initialisation: sqrt(1/3) sqrt(2 / (9 * 4))."""

# float32: logits of some tens, to whose rounding the weights are exponential.
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def as_written(*arguments: Tensor) -> tuple[Tensor, ...]:
    """Alg. 22, distances from differences of points; the reference makes them in float64."""
    q, k, v, x, y, u, pair_logits, point_weight, pair = arguments
    squares = (x[:, :, None] - y[:, None]).square().sum((-1, -2)).permute(0, 3, 1, 2)
    products = torch.einsum("bihc,bjhc->bhij", q * (3 * q.shape[-1]) ** -0.5, k)
    logits = products - 0.5 * point_weight[:, None, None] * squares + pair_logits
    weights = torch.softmax(logits, -1)
    return (
        torch.einsum("bhij,bjhc->bihc", weights, v),
        torch.einsum("bhij,bjhpx->bihpx", weights, u),
        torch.einsum("bhij,bijc->bihc", weights, pair),
    )


def arguments(sizes: Sizes, device: torch.device) -> list[Tensor]:
    """Arguments; those of features and points are parts of larger tensors, as in the model."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    b, n, h, c, p, v, z = sizes
    projected = draw(b, n, 3 * h * c)
    q = projected[..., : h * c].unflatten(-1, (h, c))
    k, values = projected[..., h * c :].unflatten(-1, (h, 2 * c)).chunk(2, dim=-1)
    points = 2 * draw(b, n, h, 2 * p + v, 3)
    pair_logits = draw(b, h, n, n)
    pair_logits[..., -2:] += MASKED
    point_weight = WEIGHT * (1 + draw(h).square())
    return [q, k, values, *points.split([p, p, v], -2), pair_logits, point_weight, draw(b, n, n, z)]


def grads(sizes: Sizes, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    b, n, h, c, _, v, z = sizes
    shapes = [(b, n, h, c), (b, n, h, v, 3), (b, n, h, z)]
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def run(
    function: Callable[..., tuple[Tensor, ...]],
    tensors: list[Tensor],
    grads: list[Tensor],
    dtype: torch.dtype,
) -> list[Tensor]:
    leaves = [t.detach().to(dtype).requires_grad_() for t in tensors]
    out = function(*leaves)[:3]
    gradients = torch.autograd.grad(out, leaves, [g.to(dtype) for g in grads])
    return [*(t.detach() for t in out), *gradients]


@pytest.mark.parametrize("sizes", CASES)
def test_value_and_gradients(sizes: Sizes, device: torch.device, poisoned_memory: None) -> None:
    tensors, of_results = arguments(sizes, device), grads(sizes, device)
    ours = run(point_attention, tensors, of_results, torch.float32)
    expected = run(reference.point_attention, tensors, of_results, torch.float64)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **CLOSE)


@pytest.mark.parametrize("sizes", CASES)
def test_gradient_of_pairs_of_several_layers(
    sizes: Sizes, device: torch.device, poisoned_memory: None
) -> None:
    """At once, as that of one layer after the other."""
    *others, pair = arguments(sizes, device)
    layers = [[factor * others[0], *others[1:]] for factor in (1.0, -0.3)]
    *_, of_pairs = grads(sizes, device)
    weighted = [factor * of_pairs for factor in (1.0, 0.7)]
    *_, logits, norms = zip(*(point_attention(*layer, pair=pair) for layer in layers), strict=True)
    found = point_attention_pair_gradient(weighted, logits, norms)
    exact = pair.double().requires_grad_()
    in_float64 = [[t.double() for t in layer] for layer in layers]
    results = [reference.point_attention(*layer, pair=exact) for layer in in_float64]
    (expected,) = torch.autograd.grad(
        [r[2] for r in results], exact, [g.double() for g in weighted]
    )
    torch.testing.assert_close(found.double(), expected, **CLOSE)


def test_other_gradients_do_not_depend_on_whether_that_of_pairs_is_wanted(
    device: torch.device, poisoned_memory: None
) -> None:
    tensors, given = arguments(CASES[0], device), grads(CASES[0], device)
    *leaves, pair = (t.detach().requires_grad_() for t in tensors)
    found = torch.autograd.grad(point_attention(*leaves, pair=pair.detach())[:3], leaves, given)
    expected = torch.autograd.grad(point_attention(*leaves, pair=pair)[:3], leaves, given)
    assert all(map(torch.equal, found, expected))


def test_far_from_the_origin_distances_keep_their_digits(device: torch.device) -> None:
    """Of points 1280 Å (128 units) away, squares of coordinates would lose an Å."""
    q, k, v, x, y, u, pair_logits, weight, pair = arguments(CASES[0], device)
    near = point_attention(q, k, v, x, y, u, pair_logits, weight, pair)[0]
    far = point_attention(q, k, v, x + 128, y + 128, u, pair_logits, weight, pair)[0]
    # Coordinates are rounded to 2^-17 there, their squared differences of up to some tens to 2^-11.
    torch.testing.assert_close(far, near, atol=2e-3, rtol=2e-3)


def test_a_query_without_keys_attends_to_all(device: torch.device) -> None:
    tensors, of_results = arguments(CASES[0], device), grads(CASES[0], device)
    tensors[6][:, :, 1] = MASKED
    ours = run(point_attention, tensors, of_results, torch.float32)
    expected = run(reference.point_attention, tensors, of_results, torch.float64)
    for a, b in zip(ours, expected, strict=True):
        # Logits near the mask's are rounded to 2^-8, and weights follow; values are of some tens.
        torch.testing.assert_close(a.double(), b, atol=2**-4, rtol=2**-4)


def test_wrong_arguments_are_named(device: torch.device) -> None:
    q, k, *rest = arguments(CASES[0], device)
    with pytest.raises(ValueError, match=r"k has shape .* must be \(2, 19, 3, 16\)"):
        point_attention(q, k[:, 1:], *rest)
    with pytest.raises(ValueError, match="float32"):
        point_attention(q.bfloat16(), k, *rest)
    v, *points, pair_logits, point_weight, pair = rest
    q_points, k_points, v_points = (t[..., :2] for t in points)
    with pytest.raises(ValueError, match=r"must be \(B, N, H, P, 3\)"):
        point_attention(q, k, v, q_points, k_points, v_points, pair_logits, point_weight, pair)


def test_wrong_layers_of_pairs_are_named() -> None:
    grad, logits, norms = (
        torch.zeros(2, 19, 3, 20),
        torch.zeros(2, 3, 19, 19),
        torch.zeros(2, 3, 19, 2),
    )
    two = [grad, grad], [logits, logits], [norms, norms]
    with pytest.raises(ValueError, match="2 gradients, 1 logits and 2 norms"):
        point_attention_pair_gradient(two[0], [logits], two[2])
    with pytest.raises(ValueError, match="one at least"):
        point_attention_pair_gradient([], [], [])
    with pytest.raises(ValueError, match=r"grads\[0\] has shape \(19, 3, 20\)"):
        point_attention_pair_gradient([grad[0]], [logits], [norms])
    with pytest.raises(ValueError, match=r"grads\[1\] has shape .* must be \(2, 19, 3, 20\)"):
        point_attention_pair_gradient([grad, grad[:, 1:]], *two[1:])
    with pytest.raises(ValueError, match=r"logits\[1\] has shape .* must be \(2, 3, 19, 19\)"):
        point_attention_pair_gradient(two[0], [logits, logits[..., 1:]], two[2])
    with pytest.raises(ValueError, match=r"norms\[0\] has shape .* must be \(2, 3, 19, 2\)"):
        point_attention_pair_gradient(*two[:2], [norms[..., :1], norms])
    with pytest.raises(ValueError, match=r"grads\[1\] is torch.bfloat16; .* float32"):
        point_attention_pair_gradient([grad, grad.bfloat16()], *two[1:])


def test_a_tile_that_would_be_compiled_wrong_is_refused(device: torch.device) -> None:
    tensors = arguments(CASES[0], device)
    with overridden() as tiles:
        tiles.force("point_attention_forward", BLOCK_I=64, BLOCK_J=32, num_warps=8, num_stages=1)
        with pytest.raises(ValueError, match="64 rows with num_warps 8"):
            point_attention(*tensors)


def test_registered_as_torch_expects(device: torch.device) -> None:
    tensors = arguments(Sizes(1, 3, 2, 4, 1, 1, 4), device)
    flat = [t.flatten(-2) if t.dim() == 5 else t for t in tensors]
    leaves = [t.detach().requires_grad_() for t in flat]
    torch.library.opcheck(torch.ops.scalefold.point_attention, tuple(leaves))
    *_, logits, norms = point_attention(*tensors)
    layers = [torch.randn_like(tensors[0])] * 2, [logits] * 2, [norms] * 2
    torch.library.opcheck(torch.ops.scalefold.point_attention_pair_gradient, layers)


@pytest.mark.gpu
@pytest.mark.parametrize("num_res", [256, 300])
def test_as_precise_as_float32(num_res: int, device: torch.device) -> None:
    sizes = Sizes(1, num_res, 12, 16, 4, 8, 128)
    tensors, of_results = arguments(sizes, device), grads(sizes, device)
    exact = run(reference.point_attention, tensors, of_results, torch.float64)
    torch_s = run(as_written, tensors, of_results, torch.float32)
    ours = run(point_attention, tensors, of_results, torch.float32)
    for a, b, value in zip(ours, torch_s, exact, strict=True):
        assert error(a, value) <= FACTOR * max(error(b, value), ROUNDING)
