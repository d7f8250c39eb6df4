"""Other implementations of attention, with the arguments of ours; the gate is by torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def cuequivariance(q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Tensor:
    """``cuequivariance_torch.triangle_attention``, and the gate by torch.

    To multiply the bias by its scale costs it 2 us of some hundreds.
    """
    gate, mask, bias, bias_scale, scale = more
    attend = import_module("cuequivariance_torch").triangle_attention
    heads_first = (x.transpose(2, 3) for x in (q, k, v))
    keep = mask.bool()[:, :, None, None]
    out = attend(*heads_first, bias_scale * bias[:, None], keep, scale=scale)
    return _gated(out.transpose(2, 3), gate)


def trifast(q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Tensor:
    """``trifast.triangle_attention``, and the gate by torch.

    It scales by 1 / sqrt(C), and assumes that rows and positions are equally many. The correctness
    check has fewer rows.
    """
    gate, mask, bias, bias_scale, scale = more
    attend = import_module("trifast").triangle_attention
    q, hidden = q * (scale * q.shape[-1] ** 0.5), ~mask.bool()
    rows, absent = q.shape[1], q.shape[2] - q.shape[1]
    if absent:
        q, k, v = (functional.pad(x, (0, 0, 0, 0, 0, 0, 0, absent)) for x in (q, k, v))
        hidden = functional.pad(hidden, (0, 0, 0, absent))
    heads_first = (x.permute(0, 3, 1, 2, 4) for x in (q, k, v))
    out = attend(*heads_first, bias_scale * bias, hidden)[:, :, :rows]
    return _gated(out.permute(0, 2, 3, 1, 4), gate)


def _gated(out: Tensor, gate: Tensor | None) -> Tensor:
    return out if gate is None else out * torch.sigmoid(gate)
