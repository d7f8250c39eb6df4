"""All cases. A paragraph is one op's: its inputs, and the sizes at which models have it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from scalefold_kernels.bench import peers, plain
from scalefold_kernels.bench.case import FINE, GENERAL, INITIAL, ODD, Args, Draw, KernelCase, Op
from scalefold_kernels.ops import triangle
from scalefold_kernels.ops.attention import attention
from scalefold_kernels.ops.global_attention import global_attention
from scalefold_kernels.ops.linear import residual_linear
from scalefold_kernels.ops.norm import layer_norm
from scalefold_kernels.ops.normed_projection import normed_projection
from scalefold_kernels.ops.outer_product import outer_product_mean
from scalefold_kernels.ops.outer_product_operands import outer_product_operands
from scalefold_kernels.ops.pointwise_attention import pointwise_attention
from scalefold_kernels.ops.transition import transition

CASES: list[KernelCase] = []

LN2 = math.log(2)
"""Scale of a bias in bits, which kernels take as it is: their exponentials are powers of 2."""


def attention_inputs(
    draw: Draw,
    rows: int,
    length: int,
    heads: int,
    channels: int,
    samples: int = 1,
    biased: bool = True,
    gated: bool = True,
    by_columns: bool = False,
    in_bits: bool = True,
) -> Args:
    """Arguments of the op.

    ``by_columns``: along the columns of a representation whose rows are contiguous. ``in_bits``:
    the projection leaves the queries in bits, as the bias is.
    """

    def lying(x: Tensor) -> Tensor:
        return x.detach().transpose(1, 2) if by_columns else x.detach()

    places = (length, rows) if by_columns else (rows, length)
    size = (samples, *places, heads, channels)
    scale = LN2 if in_bits else channels**-0.5
    units = (channels**-0.5 / scale, 1, 1, 1)
    q, k, v, gate = (lying(draw(*size, scale=unit)).requires_grad_() for unit in units)
    mask = lying(torch.ones(size[:3], device=draw.device, dtype=draw.dtype))
    bias = None
    if biased:
        # Heads first, as the projection of the pair representation leaves them; at the ending
        # node a query is the second residue of its edge.
        bias = draw(samples, heads, length, length)
        bias = bias.detach().mT.requires_grad_() if by_columns else bias
    return q, k, v, gate if gated else None, mask, bias, LN2, scale


# Rows do not know of each other: few are checked.
_attention = Op("attention", attention, plain.attention, attention_inputs, (16,)).at
_column = partial(_attention, heads=8, channels=32, biased=False, by_columns=True)
_cuequivariance = {"cuEquivariance": peers.cuequivariance}
_row = partial(_attention, heads=8, channels=32, in_bits=False, peers=_cuequivariance)
_both = _cuequivariance | {"trifast": peers.trifast}
_edge = partial(_attention, heads=4, channels=32, peers=_both)
CASES += [
    _edge(INITIAL, "triangle attention N=256", 256, 256),
    _edge(INITIAL, "triangle attention, ending node N=256", 256, 256, by_columns=True),
    _row(INITIAL, "MSA row attention 128 x 256", 128, 256),
    _column(INITIAL, "MSA column attention 128 x 256", 256, 128, in_bits=False),
    _row(INITIAL, "extra MSA row attention 1024 x 256", 1024, 256, channels=8),
    _edge(INITIAL, "template triangle attention N=256", 256, 256, channels=16, samples=4),
    _edge(FINE, "triangle attention N=384", 384, 384),
    _row(FINE, "MSA row attention 512 x 384", 512, 384),
    _edge(GENERAL, "triangle attention without gate N=256", 256, 256, gated=False),
    _edge(GENERAL, "triangle attention N=512", 512, 512),
    _edge(GENERAL, "triangle attention N=1024", 1024, 1024),
    _edge(ODD, "rows N=37", 5, 37, samples=2, peers=_cuequivariance),
    _column(ODD, "columns N=37", 5, 37, heads=2, channels=16),
    _row(ODD, "narrow heads N=37", 5, 37, channels=8),
]


def _global_inputs(draw: Draw, rows: int, residues: int) -> Args:
    channels, heads, head = 64, 8, 8
    return (
        draw.representation(1, rows, residues, channels),
        torch.ones(1, rows, residues, device=draw.device),
        *draw.norm(channels),
        draw.weight(heads * head, channels),
        draw.weight(head, channels),
        draw.weight(head, channels),
        *draw.linear(heads * head, channels),
        *draw.linear(channels, heads * head),
    )


_global = Op(
    "global_attention", global_attention, plain.global_attention, _global_inputs, (1024, 64)
).at
CASES += [
    _global(INITIAL, "S=1024 N=256", 1024, 256),
    _global(FINE, "S=5120 N=384", 5120, 384),
    _global(ODD, "S=161 N=37", 161, 37),
]


def _pointwise_inputs(draw: Draw, residues: int) -> Args:
    templates, heads, channels = 4, 4, 16
    q = draw(1, residues**2, heads, channels)
    k, v = (draw(1, templates, *q.shape[1:]) for _ in range(2))
    return q, k, v, torch.ones(1, templates, device=draw.device)


_pointwise = Op(
    "pointwise_attention", pointwise_attention, plain.pointwise_attention, _pointwise_inputs
).at
CASES += [
    _pointwise(INITIAL, "templates N=256", 256),
    _pointwise(FINE, "templates N=384", 384),
    _pointwise(GENERAL, "templates N=1024", 1024),
    _pointwise(ODD, "templates N=37", 37),
]


def _norm_inputs(draw: Draw, *shape: int) -> Args:
    return draw.representation(1, *shape), *draw.norm(shape[-1])


def _projection_inputs(draw: Draw, outputs: Sequence[int], *shape: int) -> Args:
    """Of several projections the fourth, the gate, has a bias."""
    weights = [draw.weight(size, shape[-1]) for size in outputs]
    biases = [draw(size) if place == 3 else None for place, size in enumerate(outputs)]
    # As in the model: queries of heads of 32 channels are in bits, as the bias beside them is.
    bits = 1 / LN2
    scales = (32**-0.5 * bits, bits) if len(outputs) > 4 else ()
    return *_norm_inputs(draw, *shape), weights, biases, *scales


def _norms(setting: str, what: str, *shape: int) -> Iterator[KernelCase]:
    """LayerNorm of a representation, and its projections to q, k, v and gate, and to a bias."""
    yield _norm(setting, f"LayerNorm {what}", *shape)
    to = {"q, k, v, gate": [shape[-1]] * 4}
    if what.startswith("pair"):
        to = {"q, k, v, gate, bias": [128, 128, 128, 128, 4], "bias": [8]}
    for name, outputs in to.items():
        name = f"LayerNorm and projection: {what} to {name}"
        yield _projection(setting, name, outputs, *shape)


_norm = Op("norm", layer_norm, plain.norm, _norm_inputs).at
_projection = Op("normed_projection", normed_projection, plain.projection, _projection_inputs).at
CASES += [
    *_norms(INITIAL, "pair N=256", 256, 256, 128),
    *_norms(INITIAL, "MSA 128 x 256", 128, 256, 256),
    *_norms(INITIAL, "extra MSA 1024 x 256", 1024, 256, 64),
    *_norms(FINE, "pair N=384", 384, 384, 128),
    *_norms(FINE, "MSA 512 x 384", 512, 384, 256),
    *_norms(FINE, "extra MSA 5120 x 384", 5120, 384, 64),
    *_norms(GENERAL, "pair N=512", 512, 512, 128),
    *_norms(GENERAL, "pair N=1024", 1024, 1024, 128),
    *_norms(ODD, "pair N=37", 37, 37, 128),
    *_norms(ODD, "MSA 7 x 37", 7, 37, 256),
]


def _linear_inputs(draw: Draw, rate: float, shared_dim: int | None, *shape: int) -> Args:
    """With dropout of this rate, if any, whose mask is shared along a dimension."""
    key = torch.randint(-(2**62), 2**62, (1,), device=draw.device)
    dropout = (key, 7, rate, shared_dim) if rate else None
    return draw(1, *shape), draw(1, *shape), *draw.linear(shape[-1], shape[-1]), dropout


_linear = Op("linear", residual_linear, plain.linear, _linear_inputs).at
CASES += [
    _linear(INITIAL, "pair N=256, starting node", 0.25, -3, 256, 256, 128),
    _linear(INITIAL, "pair N=256, ending node", 0.25, -2, 256, 256, 128),
    _linear(INITIAL, "MSA 128 x 256, by rows", 0.15, -3, 128, 256, 256),
    _linear(INITIAL, "MSA 128 x 256, by columns", 0.0, None, 128, 256, 256),
    _linear(INITIAL, "extra MSA 1024 x 256, by rows", 0.15, -3, 1024, 256, 64),
    _linear(FINE, "pair N=384, starting node", 0.25, -3, 384, 384, 128),
    _linear(FINE, "MSA 512 x 384, by rows", 0.15, -3, 512, 384, 256),
    _linear(GENERAL, "pair N=1024, ending node", 0.25, -2, 1024, 1024, 128),
    _linear(ODD, "pair N=37, starting node", 0.25, -3, 37, 37, 128),
    _linear(ODD, "pair N=37, ending node", 0.25, -2, 37, 37, 64),
]


def _transition_inputs(draw: Draw, rows: int, length: int, channels: int, hidden: int) -> Args:
    normed = _norm_inputs(draw, rows, length, channels)
    return *normed, *draw.linear(hidden, channels), *draw.linear(channels, hidden)


_transition = Op("transition", transition, plain.transition, _transition_inputs, (256,)).at
CASES += [
    _transition(INITIAL, "pair N=256", 256, 256, 128, 512),
    _transition(INITIAL, "MSA 128 x 256", 128, 256, 256, 1024),
    _transition(INITIAL, "extra MSA 1024 x 256", 1024, 256, 64, 256),
    _transition(INITIAL, "template pairs 4 x N=256", 1024, 256, 64, 128),
    _transition(FINE, "pair N=384", 384, 384, 128, 512),
    _transition(FINE, "MSA 512 x 384", 512, 384, 256, 1024),
    _transition(GENERAL, "pair N=1024", 1024, 1024, 128, 512),
    _transition(ODD, "pair N=37", 37, 37, 128, 512),
    _transition(ODD, "MSA 7 x 37", 7, 37, 256, 1024),
]


def _mean_inputs(draw: Draw, residues: int, rows: int) -> Args:
    size, channels, pair_channels = (1, residues, residues), 32, 128
    count = torch.randint(rows // 2, rows + 1, size, device=draw.device).to(draw.dtype)
    maps, z = draw.linear(pair_channels, channels**2), draw(*size, pair_channels)
    # As `outer_product_operands` leaves them, rows of the MSA last.
    lying = (draw(1, residues, channels, rows).detach() for _ in range(2))
    return *(x.permute(0, 3, 1, 2).requires_grad_() for x in lying), count, *maps, z


def _operands_inputs(draw: Draw, rows: int, residues: int, channels: int) -> Args:
    m = draw.representation(1, rows, residues, channels)
    mask = (torch.rand(1, rows, residues, device=draw.device) < 0.9).to(draw.dtype)
    return m, mask, *draw.norm(channels), *draw.linear(32, channels), *draw.linear(32, channels)


_mean = Op("outer_product", outer_product_mean, plain.outer_product_mean, _mean_inputs, (128,)).at
_operands = Op(
    "outer_product_operands", outer_product_operands, plain.operands, _operands_inputs
).at
CASES += [
    _mean(INITIAL, "S=128 N=256", 256, 128),
    _mean(INITIAL, "S=1024 N=256", 256, 1024),
    _mean(FINE, "S=512 N=384", 384, 512),
    _mean(GENERAL, "S=128 N=384", 384, 128),
    _mean(GENERAL, "S=128 N=512", 512, 128),
    _mean(ODD, "S=36 N=37", 37, 36),
    _mean(ODD, "S=161 N=37", 37, 161),
    _operands(INITIAL, "operands, MSA 128 x 256", 128, 256, 256),
    _operands(INITIAL, "operands, extra MSA 1024 x 256", 1024, 256, 64),
    _operands(FINE, "operands, MSA 512 x 384", 512, 384, 256),
    _operands(ODD, "operands, MSA 36 x 37", 36, 37, 256),
]


def _triangle_inputs(draw: Draw, length: int, samples: int, channels: int) -> Args:
    z = draw.representation(samples, length, length, channels)
    mask = torch.ones(z.shape[:3], device=draw.device, dtype=draw.dtype)
    mask[:, -length // 10 :] = 0
    maps = [x for _ in range(5) for x in draw.linear(channels, channels)]
    norm, out_norm = draw.norm(channels), draw.norm(channels)
    return z, mask, [*norm, *maps], [*out_norm, *draw.linear(channels, channels)]


def _triangle(
    direction: str, z: Tensor, mask: Tensor, before: Sequence[Tensor], after: Sequence[Tensor]
) -> Tensor:
    a, b, gate, z = triangle.triangle_projection(z, mask, *before)
    product = getattr(triangle, f"triangle_product_{direction}")(a, b)
    norm_weight, norm_bias, weight, bias = after
    return triangle.triangle_output(z, product, gate, norm_weight, norm_bias, weight, bias, None)


for _direction in ("outgoing", "incoming"):
    _ours, _plain = (partial(update, _direction) for update in (_triangle, plain.triangle))
    _update = Op("triangle", _ours, _plain, _triangle_inputs, (384,)).at
    _name = f"triangle multiplication, {_direction}"
    CASES += [
        _update(INITIAL, f"{_name} N=256", 256, 1, 128),
        _update(INITIAL, f"{_name} templates, N=256", 256, 4, 64),
        _update(FINE, f"{_name} N=384", 384, 1, 128),
        _update(GENERAL, f"{_name} N=512", 512, 1, 128),
        _update(GENERAL, f"{_name} N=1024", 1024, 1, 128),
        _update(ODD, f"{_name} N=37", 37, 1, 128),
    ]
