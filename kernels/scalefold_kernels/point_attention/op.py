"""``scalefold::point_attention``: attention by features, pairs and distances of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.point_attention import launch
from scalefold_kernels.point_attention.arguments import Arguments, checked, checked_layers
from scalefold_kernels.point_attention.launch import Grads, Results

_Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_Nine = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def point_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_points: Tensor,
    k_points: Tensor,
    v_points: Tensor,
    pair_logits: Tensor,
    point_weight: Tensor,
    pair: Tensor,
) -> _Five:
    """Features, points and pairs of the keys under weights from all three.

    Parameters
    ----------
    q, k, v : Tensor, shape (B, N, H, C), float32
    q_points, k_points : Tensor, shape (B, N, H, P, 3), float32
        In the global frame.
    v_points : Tensor, shape (B, N, H, V, 3), float32
    pair_logits : Tensor, shape (B, H, N, N), float32
        What pair and mask add to the logits.
    point_weight : Tensor, shape (H,), float32
        Of half a squared distance in the logits.
    pair : Tensor, shape (B, N, N, Z), float32

    Returns
    -------
    Tensor, shape (B, N, H, C)
    Tensor, shape (B, N, H, V, 3)
    Tensor, shape (B, N, H, Z)
    Tensor, shape (B, H, N, N)
        Logits, for `point_attention_pair_gradient`; no gradient flows through them.
    Tensor, shape (B, H, N, 2)
        Of each query: its highest logit, and 1 / the sum of the exponentials of all less that one;
        for the same, and without a gradient too.

    Raises
    ------
    ValueError
        A shape or a type is wrong, or there are more samples than launches hold.
    """
    points = q_points, k_points, v_points
    if any(t.shape[-1] != 3 for t in points):
        shapes = [tuple(t.shape) for t in points]
        raise ValueError(f"point_attention: points have shapes {shapes}, must be (B, N, H, P, 3)")
    flat = [t.flatten(-2) for t in points]
    out, out_points, *others = _point_attention(q, k, v, *flat, pair_logits, point_weight, pair)
    return out, out_points.unflatten(-1, (-1, 3)), *others


def point_attention_pair_gradient(
    grads: Sequence[Tensor], logits: Sequence[Tensor], norms: Sequence[Tensor]
) -> Tensor:
    """Gradient of pairs to which several layers attended, summed over these.

    Parameters
    ----------
    grads : sequence of Tensor, shape (B, N, H, Z), float32
        For each layer, the gradient of its third result of `point_attention`.
    logits, norms : sequence of Tensor, shapes (B, H, N, N) and (B, H, N, 2), float32
        The last two results of the same layers.

    Returns
    -------
    Tensor, shape (B, N, N, Z)

    Raises
    ------
    ValueError
        Layers' tensors are not as many, a shape or a type is wrong, or there are more samples than
        launches hold.
    """
    found: Tensor = _pair_gradient(list(grads), list(logits), list(norms))
    return found


@torch.library.custom_op("scalefold::point_attention_pair_gradient", mutates_args=())
def _pair_gradient(
    grads: Sequence[Tensor], logits: Sequence[Tensor], norms: Sequence[Tensor]
) -> Tensor:
    return launch.pair_gradient(*checked_layers(grads, logits, norms))


@_pair_gradient.register_fake
def _(grads: Sequence[Tensor], logits: Sequence[Tensor], norms: Sequence[Tensor]) -> Tensor:
    batch, num_res, _, channels = grads[0].shape
    return grads[0].new_empty(batch, num_res, num_res, channels)


@torch.library.custom_op("scalefold::point_attention", mutates_args=())
def _point_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    x: Tensor,
    y: Tensor,
    u: Tensor,
    pair_logits: Tensor,
    point_weight: Tensor,
    pair: Tensor,
) -> _Five:
    """The same with points as (B, N, H, 3 P); and logits with their norms, see `Results`."""
    a = checked(q, k, v, x, y, u, pair_logits, point_weight, pair)
    results = Results(*_new_results(*a))
    launch.attend(a, results)
    launch.attend_to_pairs(a, results)
    return (*results,)


@_point_attention.register_fake
def _new_results(*arguments: Tensor) -> _Five:
    a = Arguments(*arguments)
    rows, logits = a.q.shape[:3], a.pair_logits.shape
    shapes = a.v.shape, a.u.shape, (*rows, a.pair.shape[-1]), logits, (*logits[:3], 2)
    return tuple(a.q.new_empty(shape) for shape in shapes)  # type: ignore[return-value]


@torch.library.custom_op("scalefold::point_attention_backward", mutates_args=())
def point_attention_backward(
    grad: Tensor,
    grad_points: Tensor,
    grad_pairs: Tensor,
    out: Tensor,
    points: Tensor,
    pairs: Tensor,
    logits: Tensor,
    norms: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    x: Tensor,
    y: Tensor,
    u: Tensor,
    pair_logits: Tensor,
    point_weight: Tensor,
    pair: Tensor,
    of_pair: bool,
) -> _Nine:
    """Gradients of the nine arguments before ``of_pair``, in their order; pair's only with it."""
    a = checked(q, k, v, x, y, u, pair_logits, point_weight, pair)
    results = Results(out, points, pairs, logits, norms)
    grads = Grads(grad, grad_points, grad_pairs)
    new = Arguments(*_new_gradients(a, of_pair))
    of_weights = launch.pairs_backward(a, results, grads, new.pair if of_pair else None)
    of_point_weight = launch.queries_backward(a, results, grads, *of_weights, new)
    launch.keys_backward(a, results, grads, new)
    return (*new._replace(point_weight=of_point_weight),)


@point_attention_backward.register_fake
def _(*arguments: Any) -> _Nine:
    *tensors, of_pair = arguments
    return _new_gradients(tensors[8:], of_pair)


def _new_gradients(tensors: Sequence[Tensor], of_pair: bool) -> _Nine:
    *others, pair = tensors
    shapes = [*(t.shape for t in others), pair.shape if of_pair else (0,)]
    return tuple(pair.new_empty(shape) for shape in shapes)  # type: ignore[return-value]


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: _Five) -> None:
    ctx.mark_non_differentiable(*output[3:])
    ctx.save_for_backward(*output, *inputs)


def _backward(
    ctx: Any, grad: Tensor, grad_points: Tensor, grad_pairs: Tensor, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    of_pair = ctx.needs_input_grad[8]
    *others, grad_pair = point_attention_backward(
        grad, grad_points, grad_pairs, *ctx.saved_tensors, of_pair
    )
    return *others, grad_pair if of_pair else None


_point_attention.register_autograd(_backward, setup_context=_setup)
