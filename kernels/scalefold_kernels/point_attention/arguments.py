"""Arguments of the attention by points: checked, and their sizes as kernels take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.limits import check_batch
from scalefold_kernels.rows import channels_together


class Arguments(NamedTuple):
    """B samples, N residues, H heads, C channels, P and V points, Z channels of a pair."""

    q: Tensor
    """(B, N, H, C)"""
    k: Tensor
    """(B, N, H, C)"""
    v: Tensor
    """(B, N, H, C)"""
    x: Tensor
    """(B, N, H, 3 P), points of queries"""
    y: Tensor
    """(B, N, H, 3 P), points of keys"""
    u: Tensor
    """(B, N, H, 3 V), points of values"""
    pair_logits: Tensor
    """(B, H, N, N)"""
    point_weight: Tensor
    """(H,)"""
    pair: Tensor
    """(B, N, N, Z)"""

    @property
    def batch(self) -> int:
        """Samples."""
        return self.q.shape[0]

    @property
    def num_res(self) -> int:
        """Residues."""
        return self.q.shape[1]

    @property
    def sizes(self) -> dict[str, int]:
        """Constants of the kernels over tiles of queries and keys."""
        return {
            "HEADS": self.q.shape[2],
            "CHANNELS": self.q.shape[3],
            "COORDINATES": self.x.shape[-1],
            "VALUE_COORDINATES": self.u.shape[-1],
        }

    @property
    def pair_sizes(self) -> dict[str, int]:
        """Constants of the kernels over pairs."""
        return {"HEADS": self.q.shape[2], "CHANNELS": self.pair.shape[-1]}

    @property
    def scale(self) -> float:
        """Of features: each of the three kinds of logits has unit variance and weighs 1/3."""
        return float((3 * self.q.shape[-1]) ** -0.5)


def checked(*tensors: Tensor) -> Arguments:
    """The arguments, copied where a last dimension is not contiguous.

    Raises
    ------
    ValueError
        A shape or a type is wrong, or there are more samples than launches hold.
    """
    given = Arguments(*tensors)
    check_batch("point_attention", given.q)
    batch, num_res, heads, channels = given.q.shape
    rows = (batch, num_res, heads)
    points, value_points = given.x.shape[-1], given.u.shape[-1]
    features, pairs = (*rows, channels), (num_res, num_res)
    wanted: list[tuple[int, ...]] = [
        *(features, features, features),
        *((*rows, points), (*rows, points), (*rows, value_points)),
        *((batch, heads, *pairs), (heads,), (batch, *pairs, given.pair.shape[-1])),
    ]
    called = f"point_attention of q {tuple(given.q.shape)}"
    for name, tensor, shape in zip(Arguments._fields, given, wanted, strict=True):
        _check(called, name, tensor, shape)
    return Arguments(*map(channels_together, given[:6]), *(t.contiguous() for t in given[6:]))


def checked_layers(
    grads: Sequence[Tensor], logits: Sequence[Tensor], norms: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """For the gradient of several layers' pairs: what each of them gives, contiguous.

    Raises
    ------
    ValueError
        There is no layer, or not as many of each; or as for `checked`.
    """
    numbers = [*map(len, (grads, logits, norms))]
    if not grads or numbers != 3 * [len(grads)]:
        raise ValueError(
            f"point_attention_pair_gradient of {numbers[0]} gradients, {numbers[1]} logits and "
            f"{numbers[2]} norms; there must be as many of each, and one at least"
        )
    first = grads[0]
    if first.dim() != 4:
        raise ValueError(
            f"point_attention_pair_gradient: grads[0] has shape {tuple(first.shape)}, must be "
            "(B, N, H, Z)"
        )
    check_batch("point_attention_pair_gradient", first)
    batch, num_res, heads, _ = first.shape
    rows = (batch, heads, num_res)
    called = f"point_attention_pair_gradient of grads[0] {tuple(first.shape)}"
    wanted = {"grads": tuple(first.shape), "logits": (*rows, num_res), "norms": (*rows, 2)}
    for (name, shape), tensors in zip(wanted.items(), (grads, logits, norms), strict=True):
        for layer, tensor in enumerate(tensors):
            _check(called, f"{name}[{layer}]", tensor, shape)
    of_grads, of_logits, of_norms = ([t.contiguous() for t in of] for of in (grads, logits, norms))
    return of_grads, of_logits, of_norms


def _check(called: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{called}: {name} has shape {tuple(tensor.shape)}, must be {shape}")
    if tensor.dtype != torch.float32:
        raise ValueError(f"{called}: {name} is {tensor.dtype}; the kernels take float32")
