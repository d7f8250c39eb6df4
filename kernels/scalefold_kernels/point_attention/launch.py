"""Launches of the attention by points; below autograd. Legend: see `Arguments`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from scalefold_kernels.point_attention.arguments import Arguments
from scalefold_kernels.point_attention.kernel import (
    forward_kernel,
    keys_backward_kernel,
    pair_backward_kernel,
    pair_forward_kernel,
    pair_gradient_kernel,
    queries_backward_kernel,
)
from scalefold_kernels.rows import channels_together
from scalefold_kernels.tiles import Tile, architecture, tile

_WARPS_OF_64_ROWS = 4
"""Hopper's matrix instruction gives a warp 16 rows."""


class Results(NamedTuple):
    """What forward makes."""

    out: Tensor
    """(B, N, H, C)"""
    points: Tensor
    """(B, N, H, 3 V)"""
    pairs: Tensor
    """(B, N, H, Z)"""
    logits: Tensor
    """(B, H, N, N)"""
    norms: Tensor
    """(B, H, N, 2), see the kernels"""


class Grads(NamedTuple):
    """Of results."""

    out: Tensor
    points: Tensor
    pairs: Tensor


def attend(a: Arguments, r: Results) -> None:
    """Write all results but pairs."""
    launch = _tile("forward", a)
    forward_kernel[_grid(a, launch["BLOCK_I"])](
        *_rows(*a[:6]),
        a.pair_logits,
        a.point_weight,
        r.logits,
        r.norms,
        r.out,
        r.points,
        a.num_res,
        a.scale,
        **a.sizes,
        **launch,
    )


def attend_to_pairs(a: Arguments, r: Results) -> None:
    """Write what the weights make of pairs."""
    pair_forward_kernel[(a.num_res, a.batch)](
        r.logits,
        r.norms,
        a.pair,
        r.pairs,
        a.num_res,
        **a.pair_sizes,
        **_tile("pair_forward", a),
    )


def pairs_backward(
    a: Arguments, r: Results, grads: Grads, grad_pair: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of the weights through pairs, and their means; writes that of pairs if wanted."""
    grad_weights, means = torch.empty_like(r.logits), r.norms.new_empty(r.norms.shape[:3])
    pair_backward_kernel[(a.num_res, a.batch)](
        grads.pairs.contiguous(),
        r.logits,
        r.norms,
        a.pair,
        grad_weights,
        grad_pair,
        means,
        a.num_res,
        **a.pair_sizes,
        **_tile("pair_backward", a),
    )
    return grad_weights, means


def pair_gradient(
    grads: Sequence[Tensor], logits: Sequence[Tensor], norms: Sequence[Tensor]
) -> Tensor:
    """Gradient of the pairs to which several layers attended; all arguments are contiguous."""
    batch, num_res, heads, channels = grads[0].shape
    out = grads[0].new_empty(batch, num_res, num_res, channels)
    shape: dict[str, int | str] = {"N": num_res, "H": heads}
    launch = tile("point_attention_pair_gradient", architecture(out.device), shape)
    pair_gradient_kernel[(num_res, triton.cdiv(num_res, launch["BLOCK_J"]), batch)](
        tuple(grads),
        tuple(logits),
        tuple(norms),
        out,
        num_res,
        HEADS=heads,
        CHANNELS=channels,
        **launch,
    )
    return out


def queries_backward(
    a: Arguments,
    r: Results,
    grads: Grads,
    grad_weights: Tensor,
    means: Tensor,
    new: Arguments,
) -> Tensor:
    """Write gradients of logits, q and x; returns that of the points' weight, (H,)."""
    launch = _tile("queries_backward", a)
    grid = _grid(a, launch["BLOCK_I"])
    parts = grad_weights.new_empty(a.batch * grid[0], grid[1])
    queries_backward_kernel[grid](
        *_rows(*a[1:6], r.out, r.points, grads.out, grads.points),
        a.point_weight,
        r.logits,
        r.norms,
        grad_weights,
        means,
        new.pair_logits,
        new.q,
        new.x,
        parts,
        a.num_res,
        a.scale,
        **a.sizes,
        **launch,
    )
    return parts.sum(0)


def keys_backward(a: Arguments, r: Results, grads: Grads, new: Arguments) -> None:
    """Write gradients of k, v, y and u; that of the logits is there."""
    launch = _tile("keys_backward", a)
    keys_backward_kernel[_grid(a, launch["BLOCK_J"])](
        *_rows(a.q, a.x, a.y, grads.out, grads.points),
        a.point_weight,
        r.logits,
        r.norms,
        new.pair_logits,
        new.k,
        new.v,
        new.y,
        new.u,
        a.num_res,
        a.scale,
        **a.sizes,
        **launch,
    )


def _grid(a: Arguments, block: int) -> tuple[int, int, int]:
    return triton.cdiv(a.num_res, block), a.q.shape[2], a.batch


def _rows(*tensors: Tensor) -> Iterator[tuple[Tensor | int, ...]]:
    """Each as a kernel takes it: pointer, strides of samples, residues and heads."""
    for tensor in map(channels_together, tensors):
        yield tensor, *tensor.stride()[:3]


def _tile(kernel: str, a: Arguments) -> Tile:
    shape: dict[str, int | str] = {"N": a.num_res, "H": a.q.shape[2]}
    table = f"point_attention_{kernel}"
    sizes = tile(table, architecture(a.q.device), shape)
    rows = max(sizes["BLOCK_I"], sizes["BLOCK_J"]) if "BLOCK_I" in sizes else 0
    if rows >= 64 and sizes["num_warps"] > _WARPS_OF_64_ROWS:
        raise ValueError(
            f"tiles/{table}.json: {rows} rows with num_warps {sizes['num_warps']}; Triton may lay "
            f"more than {_WARPS_OF_64_ROWS} warps below each other, past the rows' end, and "
            "results are wrong: take fewer warps"
        )
    return sizes
