"""LayerNorm is as exact as its numbers allow, wherever training takes it.

A kernel can pass at scale 1 and still spoil a training run in two ways: a variance that cancels
when the mean outgrows the spread, and parameter gradients that are summed over millions of rows in
one long chain, or in another order each time. Here both have bounds derived from the arithmetic,
over six orders of magnitude of scale and mean, and over 10^7 rows.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from scalefold.ops import norm as reference
from scalefold_kernels.bench.agreement import Exact
from scalefold_kernels.bench.case import Draw, KernelCase
from scalefold_kernels.ops.norm import layer_norm
from scalefold_kernels.tiles import overridden

EPSILON = 2.0**-24
"""Relative error of one float32 rounding."""


def draw(*shape: int, seed: int, device: torch.device | str = "cpu") -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=device)


@pytest.mark.parametrize("mean_over_scale", [0.0, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("scale", [1e-3, 1e-1, 10.0, 1e3])
def test_error_grows_with_the_mean_only_as_float32_must(
    scale: float, mean_over_scale: float, device: torch.device
) -> None:
    rows, channels = 64, 128
    x = (scale * (draw(rows, channels, seed=0) + mean_over_scale)).to(device).requires_grad_()
    grad = draw(rows, channels, seed=1).to(device)
    weight, bias = torch.ones(channels, device=device), torch.zeros(channels, device=device)
    out = layer_norm(x, weight, bias)
    (grad_x,) = torch.autograd.grad(out, x, grad)
    wide = x.detach().double().requires_grad_()
    exact = reference.layer_norm(wide, weight.double(), bias.double())
    (exact_grad,) = torch.autograd.grad(exact, wide, grad.double())
    # The mean of C numbers of this size is known to log2(C) roundings of its size (a tree of sums);
    # that much of the spread is lost in x - mean, and a few roundings more in what follows.
    condition = 1 + mean_over_scale
    bound = (math.log2(channels) + 6) * EPSILON * condition
    assert (out.detach() - exact).abs().max() <= bound * exact.abs().max()
    # The gradient takes x_hat three times: twice in the product, once through 1 / deviation.
    assert (grad_x - exact_grad).abs().max() <= 3 * bound * exact_grad.abs().max()


def parameter_gradients(x: Tensor, grad: Tensor, sums: torch.dtype = torch.float64) -> Tensor:
    """Exact gradients of weight and bias, (2, C), summed in slices that fit into memory."""
    total = torch.zeros(2, x.shape[-1], dtype=sums, device=x.device)
    for rows, grads in zip(x.split(1 << 18), grad.split(1 << 18), strict=True):
        x_hat = functional.layer_norm(rows.double(), rows.shape[-1:])
        total += torch.stack([(grads.double() * x_hat).sum(0), grads.double().sum(0)])
    return total


def check_sums(x: Tensor, grad: Tensor, chain: int) -> None:
    channels = x.shape[-1]
    weight = torch.ones(channels, device=x.device, requires_grad=True)
    bias = torch.zeros(channels, device=x.device, requires_grad=True)
    out = layer_norm(x, weight, bias)
    ours = torch.stack(torch.autograd.grad(out, [weight, bias], grad.to(out.dtype)))
    exact = parameter_gradients(x, grad)
    # Terms have one sign on average, so no sum is smaller than its parts: each addition of a chain
    # and each level of the tree that joins the chains adds one rounding of at most the result.
    bound = (chain + 32) * EPSILON
    assert ((ours - exact).abs() <= bound * exact.abs()).all()


def one_sided(rows: int, channels: int, device: torch.device, dtype: torch.dtype) -> tuple:
    """Inputs, and gradients that go with them: all parameter gradients are far from zero."""
    x = draw(rows, channels, seed=0, device=device)
    grad = (x + 1 + draw(rows, channels, seed=1, device=device)).to(dtype)
    return (3 * x + 2).to(dtype), grad


def test_parameter_gradients_over_many_rows(device: torch.device) -> None:
    rows, channels, ctas, elements = 4000, 16, 2, 512
    x, grad = one_sided(rows, channels, device, torch.float32)
    with overridden() as lookups:
        lookups.force("layer_norm_backward", ELEMENTS=elements, CTAS=ctas, STAGES=1, num_warps=4)
        check_sums(x, grad, chain=rows // (ctas * elements // channels))


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [64, 128])
def test_parameter_gradients_over_ten_million_rows(channels: int, device: torch.device) -> None:
    # 528 ctas of 1,024 elements, or more: chains of 10^7 / (528 * 1024 / C) at most.
    x, grad = one_sided(10_000_000, channels, device, torch.bfloat16)
    check_sums(x, grad, chain=10_000_000 * channels // (528 * 1024))


@pytest.mark.gpu
@pytest.mark.parametrize("mean_over_scale", [0.0, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("channels", [64, 128, 256])
def test_bfloat16_is_no_worse_than_torch(
    channels: int, scale: float, mean_over_scale: float, device: torch.device
) -> None:
    def inputs(drawn: Draw) -> tuple[Tensor, Tensor, Tensor]:
        x = scale * (draw(4096, channels, seed=0, device=device) + mean_over_scale)
        weight = 1 + 0.1 * draw(channels, seed=1, device=device)
        bias = 0.1 * draw(channels, seed=2, device=device)
        return tuple(t.to(drawn.dtype).requires_grad_() for t in (x, weight, bias))

    case = KernelCase("norm", "", inputs, reference.layer_norm, layer_norm)
    agreement = Exact(case, device, torch.bfloat16).agreement(layer_norm)
    assert agreement.good, agreement
