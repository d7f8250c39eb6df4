"""Tensors beyond what 32 bits count, and batches beyond what a launch can hold."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from tests.kernels.offline.case import recorded
from torch import Tensor

from scalefold_kernels import checks, limits
from scalefold_kernels.ops import triangle
from scalefold_kernels.ops.attention import arguments as attention_arguments
from scalefold_kernels.ops.global_attention import global_attention
from scalefold_kernels.ops.linear import residual_linear
from scalefold_kernels.ops.normed_projection.arguments import apart
from scalefold_kernels.ops.outer_product import outer_product_mean
from scalefold_kernels.ops.outer_product import triton as outer_product
from scalefold_kernels.ops.outer_product.op import FEW_SEQUENCES, Factors, Mean
from scalefold_kernels.ops.outer_product_operands.triton import Parameters
from scalefold_kernels.ops.outer_product_operands.triton import forward as operands_forward
from scalefold_kernels.ops.pointwise_attention import pointwise_attention
from scalefold_kernels.ops.transition.op import matrix
from scalefold_kernels.ops.triangle import weights as triangle_weights
from scalefold_kernels.ops.triangle.arguments import OutputWeights
from scalefold_kernels.ops.triangle.arguments import Sizes as TriangleSizes
from scalefold_kernels.rows import rows_of

SHORT, LONG = 256, 4224
"""Residues whose pairs, of 128 channels, are fewer than 2^30 elements, and more than 2^31."""


def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Without memory: no kernel can run with it, but launches can be made."""
    return torch.empty(shape, dtype=dtype, device="meta")


def expanded(*shape: int) -> Tensor:
    """One element seen as many."""
    return torch.zeros(()).expand(shape)


def test_offsets_are_wide_where_strides_reach_far() -> None:
    assert not limits.needs_int64(None, torch.empty(0), new(2**20, 2**10))
    assert limits.needs_int64(None, torch.empty(0), new(2**20, 2**11))
    # Elements of a slice may lie further from each other than there are of them.
    part = new(2**10, 2**21)[:, :8]
    assert limits.needs_int64(part)
    assert not limits.needs_int64(part[:2])
    assert not limits.needs_int64(expanded(2**20, 2**12))


class Launch(NamedTuple):
    """A kernel, the module that it is launched from, and a launch for so many residues."""

    kernel: str
    module: ModuleType
    of_length: Callable[[int], Any]


def output_gradients(length: int) -> None:
    x_hat, grad_value = new(128, 1, length, length), new(1, length, length, 128)
    weights = OutputWeights(new(128), new(128), new(128, 128), new(128))
    sizes = TriangleSizes.of(grad_value, 128, 128)
    with patch.object(triangle_weights, "finish"):
        triangle_weights.output_gradients(sizes, grad_value, x_hat, weights)


def channels_first(length: int) -> Tensor:
    return new(128, length, length).permute(1, 2, 0)


def projected(length: int) -> None:
    z, count = channels_first(length), new(8, length)
    operand, weight = new(length, 8, 130), new(128, 64)
    out = new(8, length, 128)
    mean = Mean(count, new(128), z[:8], out)
    outer_product.forward(Factors(operand[:8], operand, weight), mean, None)


LAUNCHES = [
    Launch("triangle_output_weights_kernel", triangle_weights, output_gradients),
    Launch("outer_product_projection_kernel", outer_product, projected),
    Launch(
        "outer_product_mean_gradient_kernel",
        outer_product,
        lambda n: outer_product.mean_gradient(channels_first(n), new(n, n)),
    ),
]


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.kernel)
def test_kernels_are_told_where_32_bits_are_too_few(launch: Launch, long: bool) -> None:
    kernel, module, of_length = launch
    case = recorded(module, kernel, lambda: of_length(LONG if long else SHORT), kernel, "sm_90")
    assert case.constexprs["INT64"] == long


def draw(*shape: int, device: torch.device, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device).requires_grad_()


def with_gradients(function: Callable[..., Tensor], *leaves: Tensor) -> list[Tensor]:
    out = function(*leaves)
    return [out, *torch.autograd.grad(out, leaves, draw(*out.shape, device=out.device, seed=9))]


def of_triangle(device: torch.device) -> list[Tensor]:
    shapes = (2, 3, 5, 20), (2, 3, 5, 24), (2, 3, 5, 20), (24,), (24,), (20, 24), (20,)
    tensors = [draw(*shape, device=device, seed=i) for i, shape in enumerate(shapes)]
    dropout = torch.tensor([3, -5], device=device), 7, 0.25, None
    return with_gradients(lambda *t: triangle.triangle_output(*t, dropout=dropout), *tensors)


def of_outer_product(device: torch.device) -> list[Tensor]:
    found = []
    for num_seq in (9, FEW_SEQUENCES + 2):
        shapes = (1, num_seq, 5, 8), (1, num_seq, 6, 8), (12, 64), (12,), (1, 12, 5, 6)
        tensors = [draw(*shape, device=device, seed=i) for i, shape in enumerate(shapes)]
        count = torch.full((1, 5, 6), float(num_seq), device=device)

        def function(
            a: Tensor, b: Tensor, weight: Tensor, bias: Tensor, z: Tensor, count: Tensor = count
        ) -> Tensor:
            return outer_product_mean(a, b, count, weight, bias, z.permute(0, 2, 3, 1))

        found += with_gradients(function, *tensors)
    return found


@pytest.mark.parametrize("results", [of_triangle, of_outer_product])
def test_wide_offsets_change_no_bit(
    results: Callable[[torch.device], list[Tensor]],
    device: torch.device,
    poisoned_memory: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow = results(device)
    monkeypatch.setattr(limits, "MAX_ELEMENTS_INT32", -1)
    for x, y in zip(results(device), narrow, strict=True):
        assert x.isfinite().all()
        assert torch.equal(x, y)


def test_rows_that_lie_far_apart_are_copied_for_a_transition() -> None:
    near, far = new(512, 2**20)[:, :64], new(512, 2**23)[:, :64]
    assert matrix(near).stride() == near.stride()
    assert matrix(far).is_contiguous()


def test_heads_that_lie_far_apart_are_copied_for_attention() -> None:
    def heads_first(rows: int) -> Tensor:
        return new(4, rows, 2048, 64).permute(1, 2, 0, 3)[None]

    mask = new(1, 1, 2048)
    for rows, copied in ((2048, False), (4096, True)):
        q = heads_first(rows)
        inputs = attention_arguments.checked(q, q, q, q, mask, None)
        for x in inputs[:4]:
            assert x.is_contiguous() == copied
            assert x.stride(-1) == 1


def test_few_outputs_of_many_rows_lie_beside_others() -> None:
    weights = [new(128, 64), new(16, 64)]
    for length, alone in ((8192, True), (8200, False)):
        _, few = apart(new(2, length, length, 64), weights, [False, False])
        assert (few is not None) == alone


def test_too_many_rows_are_named() -> None:
    z = expanded(1, 46_400, 46_400, 8)
    parameters = [expanded(8), expanded(8), *[expanded(8, 8), expanded(8)] * 5]
    calls: list[Callable[[], Any]] = [
        lambda: rows_of(z),
        lambda: matrix(z),
        lambda: triangle.triangle_projection(z, z[..., 0], *parameters),
        lambda: triangle.triangle_output(z, z, z, *parameters[:4], dropout=None),
        lambda: residual_linear(z, z, expanded(8, 8), expanded(8), None),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="2152960000"):
            call()


def test_too_many_samples_are_named() -> None:
    batch = checks.MAX_GRID + 1
    row, weight = expanded(8), expanded(8, 8)
    x, mask = expanded(batch, 1, 1, 8), expanded(batch, 1, 1)
    keys = expanded(batch, 1, 1, 2, 4)
    operands = Parameters(row, row, weight, row, weight, row)
    attention = row, row, weight, weight, weight, weight, row, weight, row
    calls: list[Callable[[], Any]] = [
        lambda: global_attention(x, mask, *attention),
        lambda: attention_arguments.checked(keys, keys, keys, None, mask, None),
        lambda: pointwise_attention(keys[:, 0], keys, keys, mask[:, 0]),
        lambda: operands_forward(x, mask, operands, x),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"65536.*65535"):
            call()
