"""Attention with pair bias, mask and gate, in each place where the model has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scalefold.bench.kernels.case import BF16_BYTES, Function, Inputs, KernelCase, Work
from scalefold.ops.attention import LN2, attention
from scalefold.ops.triton import triton_ops


@dataclass(frozen=True)
class _Shape:
    """Sizes of one attention.

    ``order``: of rows, positions (N) and heads in memory. ``trained``: the bias has a gradient.
    ``in_bits``: the projection leaves the queries in bits, as the bias is.
    """

    samples: int
    rows: int
    length: int
    heads: int
    channels: int
    biased: bool = True
    order: str = "RNH"
    gated: bool = True
    trained: bool = True
    in_bits: bool = True

    @property
    def columns(self) -> bool:
        """Whether it is along the columns of a representation whose rows are contiguous."""
        return self.order.index("N") < self.order.index("R")

    @property
    def elements(self) -> int:
        """Of q."""
        return self.samples * self.rows * self.length * self.heads * self.channels

    @property
    def weights(self) -> int:
        return self.samples * self.rows * self.heads * self.length**2


_SHAPES = [
    ("triangle attention N=256", _Shape(1, 256, 256, 4, 32), "initial training"),
    (
        "triangle attention, ending node N=256",
        _Shape(1, 256, 256, 4, 32, order="NRH"),
        "initial training",
    ),
    (
        "triangle attention without gate N=256",
        _Shape(1, 256, 256, 4, 32, gated=False),
        "initial training",
    ),
    ("MSA row attention 128 x 256", _Shape(1, 128, 256, 8, 32, in_bits=False), "initial training"),
    (
        "MSA column attention 128 x 256",
        _Shape(1, 256, 128, 8, 32, biased=False, order="NRH", in_bits=False),
        "initial training",
    ),
    (
        "extra MSA row attention 1024 x 256",
        _Shape(1, 1024, 256, 8, 8, in_bits=False),
        "initial training",
    ),
    ("template triangle attention N=256", _Shape(4, 256, 256, 4, 16), "initial training"),
    ("triangle attention N=384", _Shape(1, 384, 384, 4, 32), "fine-tuning"),
    ("MSA row attention 512 x 384", _Shape(1, 512, 384, 8, 32, in_bits=False), "fine-tuning"),
    ("triangle attention N=512", _Shape(1, 512, 512, 4, 32), "general"),
    ("triangle attention N=1024", _Shape(1, 1024, 1024, 4, 32), "general"),
    # What others do, in the order in memory that they take without copies.
    *(
        (
            f"triangle attention without {what} N={n}",
            _Shape(1, n, n, 4, 32, gated=False, **given),
            "comparison",
        )
        for what, given in (
            ("gate, heads before residues", {"order": "RHN"}),
            ("gate, heads before rows", {"order": "HRN"}),
            ("gate and bias's gradient, heads before residues", {"order": "RHN", "trained": False}),
            ("gate and bias, heads before residues", {"order": "RHN", "biased": False}),
        )
        for n in (256, 384)
    ),
]

_SDPA = {
    "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""Backends of torch's scaled_dot_product_attention: CUDA by NVIDIA and torch."""


def cases() -> list[KernelCase]:
    """All kinds of attention but the global one."""
    return [_case(*shape) for shape in _SHAPES]


def _case(name: str, shape: _Shape, setting: str) -> KernelCase:
    # The weights of few rows in float64 fit any GPU; rows do not know of each other.
    few = _Shape(**{**vars(shape), "rows": min(shape.rows, 16)})
    peers: dict[str, Any] = {}
    if shape.biased:
        peers = {"cuEquivariance": _cuequivariance, "trifast": partial(_trifast, shape)}
    peers |= {name: partial(_sdpa, shape, backend) for name, backend in _SDPA.items()}
    return KernelCase(
        op="attention",
        shape=name,
        setting=setting,
        inputs=partial(_inputs, shape),
        check_inputs=partial(_inputs, few),
        reference=attention,
        ours=triton_ops().attention,
        forward=_forward(shape),
        backward=_backward(shape),
        peers=peers,
    )


def _forward(shape: _Shape) -> Work:
    """Read q, k, v and gate, write the result; two products; an exponential a weight."""
    return Work(
        bytes=(5 if shape.gated else 4) * shape.elements * BF16_BYTES,
        flops=4 * shape.weights * shape.channels,
        exponentials=shape.weights,
    )


def _backward(shape: _Shape) -> Work:
    """Read what forward had, its result and gradient, write four gradients; five products.

    The weights are computed again once.
    """
    return Work(
        bytes=(10 if shape.gated else 8) * shape.elements * BF16_BYTES,
        flops=10 * shape.weights * shape.channels,
        exponentials=shape.weights,
    )


def _inputs(shape: _Shape, device: torch.device, dtype: torch.dtype) -> Inputs:
    generator = torch.Generator(device).manual_seed(0)
    sizes = {"R": shape.rows, "N": shape.length, "H": shape.heads}
    places = [1 + shape.order.index(size) for size in sizes]
    scale = LN2 if shape.in_bits else shape.channels**-0.5
    parts = []
    for unit in (shape.channels**-0.5 / scale, 1, 1, 1)[: 4 if shape.gated else 3]:
        size = [shape.samples, *(sizes[name] for name in shape.order), shape.channels]
        x = (unit * torch.randn(*size, generator=generator, device=device)).to(dtype)
        parts.append(x.permute(0, *places, 4).requires_grad_())
    size = [shape.samples, *(sizes[name] for name in shape.order if name != "H")]
    mask = torch.ones(*size, device=device, dtype=dtype)
    mask = mask.transpose(1, 2) if shape.columns else mask
    bias = None
    if shape.biased:
        # Heads first, as the projection of the pair representation leaves them; at the ending
        # node a query is the second residue of its edge.
        pairs = (shape.samples, shape.heads, shape.length, shape.length)
        bias = torch.randn(*pairs, generator=generator, device=device).to(dtype)
        bias = (bias.mT if shape.columns else bias).requires_grad_(shape.trained)
    gate = parts[3] if shape.gated else None
    return *parts[:3], gate, mask, bias, LN2, scale


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


def _cuequivariance() -> Function | None:
    try:
        peer = import_module("cuequivariance_torch").triangle_attention
    except ImportError:
        return None

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor, scale: float) -> Any:
        heads_first = (x.transpose(2, 3) for x in (q, k, v))
        keep = mask.bool()[:, :, None, None]
        out = peer(*heads_first, bias[:, None], keep, scale=scale)
        return out.transpose(2, 3)

    return _gated(attend)


def _trifast(shape: _Shape) -> Function | None:
    """Square only, heads of 16 or more channels."""
    if shape.rows != shape.length or shape.channels < 16:
        return None
    try:
        peer = import_module("trifast").triangle_attention
    except ImportError:
        return None

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor, scale: float) -> Any:
        # It scales by 1 / sqrt(C).
        q = q * (scale * shape.channels**0.5)
        # It takes for granted that there are as many rows as positions; the correctness test, which
        # is in float64, has fewer.
        rows, absent = q.shape[1], q.shape[2] - q.shape[1]
        hidden = ~mask.bool()
        if absent:
            q, k, v = (functional.pad(x, (0, 0, 0, 0, 0, 0, 0, absent)) for x in (q, k, v))
            hidden = functional.pad(hidden, (0, 0, 0, absent))
        heads_first = (x.permute(0, 3, 1, 2, 4) for x in (q, k, v))
        out = peer(*heads_first, bias, hidden)[:, :, :rows]
        return out.permute(0, 2, 3, 1, 4)

    return _gated(attend)


def _sdpa(shape: _Shape, backend: SDPBackend) -> Function | None:
    if shape.biased:
        # In torch cuDNN's has no gradient of a bias and flash attention takes none; the biases of
        # several samples, one for many rows each, are no view of one for every row.
        served = [SDPBackend.EFFICIENT_ATTENTION]
        served += [] if shape.trained else [SDPBackend.CUDNN_ATTENTION]
        if shape.samples > 1 or backend not in served:
            return None
    return _gated(partial(_attend_by, backend))


def _attend_by(
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
