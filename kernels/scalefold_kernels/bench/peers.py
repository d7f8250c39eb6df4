"""Other implementations of attention and of triangle multiplication, as functions of our inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scalefold_kernels.bench.case import Function, Peer

SDPA = {
    "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""Backends of torch's scaled_dot_product_attention: CUDA by NVIDIA and torch."""


def attention_peers(
    *, biased: bool, trained: bool, samples: int, square: bool, channels: int
) -> dict[str, Peer]:
    """Those that serve an attention.

    Parameters
    ----------
    biased, trained : bool
        Whether it has a bias, and whether the bias takes a gradient.
    samples : int
    square : bool
        Whether there are as many rows as positions.
    channels : int
        Of a head.
    """
    peers: dict[str, Peer] = {}
    if biased:
        peers["cuEquivariance"] = partial(_imported, "cuequivariance_torch", _cuequivariance)
    if biased and square and channels >= 16:
        peers["trifast"] = partial(_imported, "trifast", _trifast)
    backends = list(SDPA)
    if biased:
        # In torch cuDNN's has no gradient of a bias and flash attention takes none.
        backends = ["SDPA memory-efficient", *([] if trained else ["SDPA cuDNN"])]
    if not (biased and samples > 1):
        # The biases of several samples, one for many rows each, are no view of one for every row.
        for name in backends:
            peers[name] = partial(_gated, partial(attend_by, SDPA[name]))
    return peers


def triangle_multiplication_peers(direction: str) -> dict[str, Peer]:
    """Those of triangle multiplication."""
    make = partial(_cuequivariance_update, direction)
    return {"cuEquivariance": partial(_imported, "cuequivariance_torch", make)}


def _imported(package: str, make: Callable[[Any], Function]) -> Function | None:
    try:
        return make(import_module(package))
    except ImportError:
        return None


def _gated(attend: Callable[..., Tensor]) -> Function:
    """Attention of a natural bias and without a gate of its own, and torch's gate.

    To multiply the bias by its scale costs them 2 us of some hundreds; trifast, whose own scale is
    fixed, multiplies the queries, too.
    """

    def gated(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor | None,
        mask: Tensor,
        bias: Tensor | None,
        bias_scale: float,
        scale: float,
    ) -> Tensor:
        out = attend(q, k, v, mask, None if bias is None else bias_scale * bias, scale)
        return out if gate is None else out * torch.sigmoid(gate)

    return gated


def _cuequivariance(package: Any) -> Function:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor, scale: float) -> Tensor:
        heads_first = (x.transpose(2, 3) for x in (q, k, v))
        keep = mask.bool()[:, :, None, None]
        out: Tensor = package.triangle_attention(*heads_first, bias[:, None], keep, scale=scale)
        return out.transpose(2, 3)

    return _gated(attend)


def _trifast(package: Any) -> Function:
    """It scales by 1 / sqrt(C), and takes for granted that rows and positions are equally many.

    The correctness check has fewer rows.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor, scale: float) -> Tensor:
        q = q * (scale * q.shape[-1] ** 0.5)
        rows, absent = q.shape[1], q.shape[2] - q.shape[1]
        hidden = ~mask.bool()
        if absent:
            q, k, v = (functional.pad(x, (0, 0, 0, 0, 0, 0, 0, absent)) for x in (q, k, v))
            hidden = functional.pad(hidden, (0, 0, 0, absent))
        heads_first = (x.permute(0, 3, 1, 2, 4) for x in (q, k, v))
        out: Tensor = package.triangle_attention(*heads_first, bias, hidden)[:, :, :rows]
        return out.permute(0, 2, 3, 1, 4)

    return _gated(attend)


def attend_by(
    backend: SDPBackend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    bias: Tensor | None,
    scale: float,
) -> Tensor:
    """SDPA by one backend; rows are its batch.

    The mask, all ones here, is left out: with a bias it would make a tensor of all weights' size.
    """
    rows = q.shape[:2]
    q, k, v = (x.flatten(0, 1).transpose(1, 2) for x in (q, k, v))
    bias = None if bias is None else bias.contiguous()
    with sdpa_kernel(backend):
        out = functional.scaled_dot_product_attention(q, k, v, bias, scale=scale)
    return out.transpose(1, 2).unflatten(0, rows)


def _cuequivariance_update(direction: str, package: Any) -> Function:
    def update(z: Tensor, mask: Tensor, projection: list[Tensor], output: list[Tensor]) -> Tensor:
        scale, shift, a, a_bias, a_gate, a_gate_bias, b, b_bias, b_gate, b_gate_bias, *gate = (
            projection
        )
        added: Tensor = package.triangle_multiplicative_update(
            z,
            direction=direction,
            mask=mask,
            norm_in_weight=scale,
            norm_in_bias=shift,
            p_in_weight=torch.cat([a, b]),
            p_in_bias=torch.cat([a_bias, b_bias]),
            g_in_weight=torch.cat([a_gate, b_gate]),
            g_in_bias=torch.cat([a_gate_bias, b_gate_bias]),
            norm_out_weight=output[0],
            norm_out_bias=output[1],
            p_out_weight=output[2],
            p_out_bias=output[3],
            g_out_weight=gate[0],
            g_out_bias=gate[1],
        )
        return z + added

    return update
