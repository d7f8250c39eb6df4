"""What the Triton kernels of triangle multiplication share.

Legend: P = B I J positions of the pair representation, Z its channels, C hidden channels. ``z``,
``gate`` and ``out`` are (P, Z), channels last. The operands ``a`` and ``b`` and their product are
(C, P), positions last, so that the product is a plain batched matrix product. A CTA holds all
channels of BLOCK_P positions. ``x_hat``: normalised, without LayerNorm's weight and bias.
"""

import triton
import triton.language as tl

from scalefold_kernels.dot import ON_AMD
from scalefold_kernels.ops.norm.triton import EPS

NO_ASSEMBLY = tl.constexpr(ON_AMD or triton.knobs.runtime.interpret)
"""Where NVIDIA's instructions are unknown."""

SIGMOID = tl.constexpr("""{
        .reg .f32 t;
        mul.f32 t, $1, 0fBFB8AA3B;
        ex2.approx.ftz.f32 t, t;
        add.f32 t, t, 0f3F800000;
        rcp.approx.ftz.f32 $0, t;
        }""")
"""Two special-function instructions; relative error about 2^-21 of any normal result."""


@triton.jit
def sigmoid(x):
    """By `SIGMOID`, where it is known.

    Impure, so that Triton does not make it again for each layout in which the result is used.
    """
    if NO_ASSEMBLY:
        return tl.sigmoid(x)
    return tl.inline_asm_elementwise(SIGMOID, "=f,f", [x], dtype=tl.float32, is_pure=False, pack=1)


@triton.jit
def standardise(x, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of zero mean and unit variance, zeros in the padding; mean; 1 / standard deviation."""
    mean = tl.sum(x, 1) / CHANNELS
    centred = x - mean[:, None]
    if CHANNELS != BLOCK:
        centred = tl.where(tl.arange(0, BLOCK)[None, :] < CHANNELS, centred, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / CHANNELS + EPS)
    return centred * rstd[:, None], mean, rstd


@triton.jit
def standardise_backward(grad, x_hat, rstd, CHANNELS: tl.constexpr):
    """Gradient of the input of `standardise` from that of its result."""
    mean_product = tl.sum(grad * x_hat, 1) / CHANNELS
    mean_grad = tl.sum(grad, 1) / CHANNELS
    return (grad - mean_grad[:, None] - x_hat * mean_product[:, None]) * rstd[:, None]
