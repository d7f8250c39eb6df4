"""Kernels for Hopper GPUs on the CPU, in the interpreter of `gluon_interpreter`, at odd sizes.

Values and all gradients of the ops that launch them, in bfloat16, against float64: within what the
benchmark allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from importlib import import_module
from pkgutil import walk_packages
from types import FunctionType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.kernels.gluon_interpreter import interpreted
from torch import Tensor
from triton.experimental.gluon._runtime import GluonJITFunction

import scalefold_kernels
from scalefold.ops import attention as attention_reference
from scalefold.ops import linear as linear_reference
from scalefold.ops import norm as norm_reference
from scalefold.ops import outer_product as outer_product_reference
from scalefold.ops import transition as transition_reference
from scalefold.ops import triangle as triangle_reference
from scalefold.ops.attention import LN2
from scalefold.ops.dropout import Dropout
from scalefold_kernels import gpu
from scalefold_kernels.bench.agreement import Agreement, Exact
from scalefold_kernels.bench.case import Args, Draw, KernelCase
from scalefold_kernels.ops import triangle
from scalefold_kernels.ops.attention import attention
from scalefold_kernels.ops.linear import residual_linear
from scalefold_kernels.ops.normed_projection import normed_projection
from scalefold_kernels.ops.outer_product import outer_product_mean
from scalefold_kernels.ops.transition import transition
from scalefold_kernels.ops.triangle.arguments import Product
from scalefold_kernels.ops.triangle.hopper import product as hopper_product

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="they run on the GPU itself"),
]

CASES: dict[str, KernelCase] = {}


def add(name: str, ours: Callable, reference: Callable, inputs: Callable[[Draw], Args]) -> None:
    CASES[name] = KernelCase("", name, inputs, reference, ours)


def transition_inputs(rows: int, channels: int, hidden: int, draw: Draw) -> Args:
    return (
        draw.representation(1, rows, channels), *draw.norm(channels),
        draw.weight(hidden, channels), draw(hidden), draw.weight(channels, hidden), draw(channels),
    )  # fmt: skip


for shape in ((133, 24, 72), (650, 64, 136), (259, 200, 304)):
    add(
        f"transition {shape}", transition, transition_reference.transition,
        partial(transition_inputs, *shape),
    )  # fmt: skip


def projection_inputs(
    rows: tuple[int, ...],
    channels: int,
    outputs: list[int],
    biased: int,
    first_scale: float,
    draw: Draw,
) -> Args:
    """``biased``: which of them has a bias."""
    x = draw(*rows, channels, scale=2, shift=1)
    weights = [draw.weight(size, channels) for size in outputs]
    biases = [draw(size) if i == biased else None for i, size in enumerate(outputs)]
    return x, *draw.norm(channels), weights, biases, first_scale, 1 / LN2


for case in (
    ((1, 11, 97), 128, [128, 128, 128, 128, 4], 3, 1.0),
    ((1, 11, 97), 128, [128, 128, 128, 128, 4], 3, 0.3),
    ((2, 33, 19), 64, [64, 64, 64, 64], 3, 0.3),
    # What is scaled is not whole blocks of outputs, or is all and has a bias.
    ((3, 7, 11), 48, [40, 40, 40, 40, 16], 3, 0.3),
    ((2, 5, 7), 256, [104], 0, 0.3),
    ((1, 11, 97), 256, [128, 128, 128, 128], 3, 1.0),
    ((1, 11, 97), 64, [64, 64], 0, 0.3),
    ((1, 11, 97), 256, [256, 128, 128, 128], 3, 0.3),
):
    add(
        f"projection {case}", normed_projection, norm_reference.normed_projection,
        partial(projection_inputs, *case),
    )  # fmt: skip


def dropout(batch: int, shared_dim: int | None) -> Dropout | None:
    return None if shared_dim == 0 else Dropout(torch.arange(batch), 17, 0.25, shared_dim)


def linear_inputs(shape: tuple[int, ...], inputs: int, draw: Draw) -> Args:
    *rows, channels = shape
    return draw(*shape), draw(*rows, inputs), draw.weight(channels, inputs), draw(channels)


for shape, inputs, shared in (
    ((2, 16, 70, 72), 40, -3),
    ((1, 11, 67, 200), 72, -3),
    ((2, 5, 70, 200), 120, -2),
    ((1, 3, 333, 136), 248, 0),
):
    add(
        f"linear {shape} {inputs}, {shared}",
        partial(residual_linear, dropout=dropout(shape[0], shared)),
        partial(linear_reference.residual_linear, dropout=dropout(shape[0], shared)),
        partial(linear_inputs, shape, inputs),
    )


def triangle_inputs(channels: int, size: tuple[int, int, int], draw: Draw) -> Args:
    mask = (torch.rand(size) < 0.8).to(draw.dtype)

    def maps(number: int) -> Iterator[Tensor]:
        for _ in range(number):
            yield from (draw.weight(channels, channels), draw(channels))

    return (
        draw.representation(*size, channels), mask, *draw.norm(channels), *maps(5),
        *draw.norm(channels), *maps(1),
    )  # fmt: skip


def triangle_update(ops: Any, direction: str, dropout: Dropout | None) -> Callable[..., Tensor]:
    """The whole update, as the model makes it of its parts."""

    def run(z: Tensor, mask: Tensor, *parameters: Tensor) -> Tensor:
        a, b, gate, z = ops.triangle_projection(z, mask, *parameters[:12])
        product = getattr(ops, f"triangle_product_{direction}")(a, b)
        return ops.triangle_output(z, product, gate, *parameters[12:], dropout)

    return run


for channels, size, direction, shared in (
    (64, (1, 36, 36), "outgoing", -3),
    (128, (1, 28, 28), "incoming", 0),
    (128, (2, 12, 12), "outgoing", -2),
    (64, (2, 12, 12), "incoming", None),
):
    add(
        f"triangle {channels, size} {direction}, {shared}",
        triangle_update(triangle, direction, dropout(size[0], shared)),
        triangle_update(triangle_reference, direction, dropout(size[0], shared)),
        partial(triangle_inputs, channels, size),
    )


def product_inputs(transposed: tuple[bool, bool], draw: Draw) -> Args:
    """Of two products; ``transposed``: matrices that lie transposed in memory."""
    shapes = ((72, 280), (280, 136)) * 2
    factors = (torch.randn(3, 2, *shape).to(draw.dtype) for shape in shapes)
    return tuple(
        x.mT.contiguous().mT if is_transposed else x
        for x, is_transposed in zip(factors, transposed * 2, strict=True)
    )


def two_products(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return tuple(hopper_product.products([Product(x, y), Product(z, w)]))


for both in ((False, False), (False, True), (True, False)):
    add(
        f"products {both}", two_products, lambda x, y, z, w: (x @ y, z @ w),
        partial(product_inputs, both),
    )  # fmt: skip


def mean_inputs(shape: tuple[int, ...], draw: Draw) -> Args:
    batch, num_seq, size_i, size_j, channels, size_z = shape
    # At least 1, so that no division by 1e-3 hides everything else in the norm.
    count = torch.randint(1, num_seq + 1, (batch, size_i, size_j)).float()
    return (
        draw(batch, num_seq, size_i, channels), draw(batch, num_seq, size_j, channels), count,
        draw.weight(size_z, channels**2), draw(size_z), draw(batch, size_i, size_j, size_z),
    )  # fmt: skip


for shape in ((1, 24, 21, 37, 16, 72), (2, 72, 7, 9, 32, 128)):
    add(
        f"outer product mean {shape}", outer_product_mean,
        outer_product_reference.outer_product_mean, partial(mean_inputs, shape),
    )  # fmt: skip


def attention_inputs(
    shape: tuple[int, ...],
    gated: bool,
    biased: bool,
    transposed: bool,
    in_bits: bool,
    shift: float,
    draw: Draw,
    deviation: float = 1.0,
) -> Args:
    """``transposed``: the bias lies in memory with queries last; ``shift`` is added to it.

    ``in_bits``: the queries are, as the bias is.
    """
    batch, rows, queries, keys, heads, channels = shape
    mask = (torch.rand(batch, rows, keys) > 0.3).to(draw.dtype)
    mask[:, :, 0] = 1
    unit = channels**-0.5 / LN2 if in_bits else 1.0
    q = draw(batch, rows, queries, heads, channels, scale=unit)
    k, v = (draw(batch, rows, keys, heads, channels) for _ in range(2))
    gate = draw(*q.shape) if gated else None
    bias = None
    if biased:
        lines = (keys, queries) if transposed else (queries, keys)
        bias = draw(batch, heads, *lines, scale=deviation, shift=shift)
        bias = bias.detach().mT.requires_grad_() if transposed else bias
    return q, k, v, gate, mask, bias, LN2, LN2 if in_bits else None


for shape, gated, biased, transposed, in_bits, shift in (
    ((1, 9, 77, 77, 2, 16), True, False, False, False, 0),
    ((2, 3, 70, 67, 3, 32), True, True, True, True, 0),
    ((1, 7, 70, 200, 2, 32), True, True, False, True, 0),
    ((1, 3, 130, 135, 2, 16), False, True, True, False, 0),
    # Four and three warp groups a program.
    ((1, 9, 140, 200, 1, 32), True, True, True, False, 0),
    ((2, 3, 200, 300, 1, 24), False, True, False, True, 200),
    # Of more than 256 keys two kernels give the gradients of queries, one after the other.
    ((1, 3, 66, 300, 1, 16), True, True, False, False, 0),
    ((2, 2, 33, 500, 1, 16), False, True, True, True, 0),
    # Several blocks after the first 256 keys: in two passes; in one, the bias's queries last.
    ((1, 3, 70, 460, 1, 32), True, True, False, True, 0),
    ((1, 3, 70, 380, 1, 32), True, True, True, False, 0),
    ((1, 3, 70, 200, 1, 32), False, False, False, False, 0),
    ((1, 5, 77, 77, 2, 8), True, True, False, False, 0),
    ((2, 3, 67, 135, 4, 8), True, True, True, True, 0),
    # float32 cannot hold the exponentials: forward goes through its rows once more.
    ((1, 5, 70, 77, 2, 16), True, True, False, False, 200),
    ((1, 5, 70, 77, 2, 8), False, True, False, True, -200),
):
    add(
        f"attention {shape}, {gated}, {biased}, {transposed}, {in_bits}, {shift}", attention,
        attention_reference.attention,
        partial(attention_inputs, shape, gated, biased, transposed, in_bits, shift),
    )  # fmt: skip


# A bias of so many bits leaves most queries one key. By both kernels of the gradient of queries.
for deviation in (10, 40):
    for shape, gated in (((1, 6, 70, 200, 1, 16), True), ((1, 6, 70, 100, 1, 16), False)):
        add(
            f"attention {shape}, a bias of {deviation} bits", attention,
            attention_reference.attention,
            partial(attention_inputs, shape, gated, True, False, True, 0, deviation=deviation),
        )  # fmt: skip


@contextmanager
def on_hopper() -> Iterator[set[FunctionType]]:
    """Ops launch the kernels for Hopper GPUs, which run in the interpreter."""
    with ExitStack() as stack:
        for module, name, value in (
            (gpu, "is_hopper", lambda device: True),
            (gpu, "has_gluon", lambda: True),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield stack.enter_context(interpreted())


@cache
def run(name: str) -> tuple[Agreement, frozenset[FunctionType]]:
    """What the case gives, and the kernels that it launches."""
    case = CASES[name]
    exact = Exact(case, torch.device("cpu"), torch.bfloat16)
    with on_hopper() as launched:
        agreement = exact.agreement(case.ours)
    return agreement, frozenset(launched)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients(name: str) -> None:
    agreement, launched = run(name)
    assert launched
    assert agreement.good, agreement


def kernels() -> Iterator[FunctionType]:
    """All of the package that are launched: those of Gluon's functions that are named so."""
    for module in walk_packages(scalefold_kernels.__path__, f"{scalefold_kernels.__name__}."):
        for name, value in vars(import_module(module.name)).items():
            if isinstance(value, GluonJITFunction) and name.endswith("_kernel"):
                yield value.fn


def test_every_kernel_is_interpreted() -> None:
    launched = set().union(*(run(name)[1] for name in CASES))
    missing = {f"{kernel.__module__}.{kernel.__name__}" for kernel in {*kernels()} - launched}
    assert not missing
