"""What `op` hands to the backends of normalised projections, by name.

Example, triangle attention: q, k, v and gate have 128 outputs each, and only the gate has a bias;
the last projection is the bias of 4 heads. `apart` takes that one off the first four. So of `Sizes`
``outputs`` is 512, ``first_biased`` 384 and ``few`` 4. The queries are scaled: ``first`` is 128, in
blocks of 64 `Projections.scaled_blocks` is 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from scalefold_kernels.checks import check_shapes, check_types
from scalefold_kernels.limits import exceeds_int32
from scalefold_kernels.packing import join

MAX_FUSED_CHANNELS = 128
"""Most channels of the portable kernels: wider rows leave too little room beside the weights."""

MAX_NARROW_OUTPUTS = 64
"""Most outputs whose gradients the portable kernels compute in one pass over the input."""

MAX_FEW_OUTPUTS = 16
"""Most outputs of a projection, alone or beside wide ones, with its own tensor, outputs first."""


class Norm(NamedTuple):
    """Weight and bias of the normalisation (C,), contiguous, and its statistics (2, R)."""

    weight: Tensor
    bias: Tensor
    stats: Tensor


class Sizes(NamedTuple):
    """Sizes that give the shapes of all results and gradients."""

    channels: int  # C
    outputs: int  # D, of the projections whose results are side by side
    first_biased: int  # the first output with a bias, D where there is none
    few: int  # F, outputs of the projection that has a result of its own; 0 without one

    @classmethod
    def of(cls, x: Tensor, weights: Sequence[Tensor], biased: Sequence[bool]) -> Sizes:
        """Make it from the operator's arguments."""
        beside, few = apart(x, weights, biased)
        outputs = [weight.shape[0] for weight in beside]
        skipped = (*biased, True).index(True)
        num_few = 0 if few is None else few.shape[0]
        return cls(x.shape[-1], sum(outputs), sum(outputs[:skipped]), num_few)

    @property
    def sums(self) -> int:
        """Number of the norm's parameters and of biases from the first on."""
        return 2 * self.channels + self.outputs - self.first_biased

    @property
    def parameters(self) -> int:
        """Number of all parameters, biases before the first not counted."""
        return self.sums + (self.few + self.outputs) * self.channels


class Projections(NamedTuple):
    """All projections of one normalised input, contiguous."""

    sizes: Sizes
    weight: Tensor  # (D, C)
    few: Tensor | None  # (F, C)
    bias: Tensor | None  # of outputs first_biased to D
    first: int  # outputs of the first projection of those side by side
    first_scale: float  # what they are multiplied by before they are rounded
    few_scale: float  # what the few outputs are multiplied by before they are rounded

    @classmethod
    def of(
        cls,
        x: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        biased: Sequence[bool],
        first_scale: float,
        few_scale: float,
    ) -> Projections:
        """Make it from the operator's arguments."""
        beside, few = apart(x, weights, biased)
        return cls(
            Sizes.of(x, weights, biased),
            join(beside, 0).contiguous() if beside else x.new_empty(0, x.shape[-1]),
            None if few is None else few.contiguous(),
            _joined(beside, biases, biased) if biases else None,
            beside[0].shape[0] if beside else 0,
            first_scale if beside else 1.0,
            few_scale,
        )

    def scaled_blocks(self, block: int) -> int:
        """Blocks of outputs that hold the first projection alone, if it is scaled.

        0 where it has a bias, is not whole blocks or is the only one: then `scaled_weight` is used.
        """
        most = min(self.sizes.first_biased, self.sizes.outputs - 1)
        whole = self.first % block == 0 and self.first <= most
        return self.first // block if whole and self.first_scale != 1 else 0

    def scaled_weight(self) -> Tensor:
        """The weight, the first projection scaled; a copy if its scale is not 1."""
        return self._scaled(self.weight)

    def scaled_bias(self) -> Tensor | None:
        """The bias, scaled as in `scaled_weight`."""
        if self.bias is None or self.sizes.first_biased:
            return self.bias
        return self._scaled(self.bias)

    def _scaled(self, of_outputs: Tensor) -> Tensor:
        if self.first_scale != 1:
            of_outputs = of_outputs.clone()
            of_outputs[: self.first] *= self.first_scale
        return of_outputs


def check_projections(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> None:
    """Raise ValueError where linear maps are not of the channels of ``x``, or not of its type."""
    if not weights or len(biases) != len(weights):
        raise ValueError(
            f"normed_projection with {len(weights)} weights and {len(biases)} biases; there must "
            "be as many of both, one at least"
        )
    call = f"normed_projection of x {tuple(x.shape)}"
    for n, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        check_shapes(call, [(f"weight {n}", weight, (len(weight), x.shape[-1]))])
        check_shapes(call, [(f"bias {n}", bias, weight.shape[:1])])
    check_types("normed_projection", (x, *weights))


def apart(
    x: Tensor, weights: Sequence[Tensor], biased: Sequence[bool]
) -> tuple[Sequence[Tensor], Tensor | None]:
    """Weights whose results are side by side, and the one with a result of its own, if any.

    Kernels count a sample's elements of such a result in 32 bits.
    """
    *beside, last = weights
    if (
        why_not_fused(x) is None
        and last.shape[0] <= MAX_FEW_OUTPUTS
        and not exceeds_int32(last.shape[0] * prod(x.shape[1:-1]))
        and not biased[-1]
        and (not beside or sum(weight.shape[0] for weight in beside) > MAX_NARROW_OUTPUTS)
    ):
        return beside, last
    return weights, None


def why_not_fused(x: Tensor) -> str | None:
    """Why the portable kernels do not take this input, by measurement; or None.

    float32 has no fast matrix product in Triton; the library's follows torch's own settings.
    """
    if x.shape[-1] > MAX_FUSED_CHANNELS:
        return f"takes {MAX_FUSED_CHANNELS} channels at most, found {x.shape[-1]}"
    if x.dtype == torch.float32 and x.is_cuda:
        return "Triton has no fast matrix product of float32"
    return None


class Gradients(NamedTuple):
    """Gradients of all parameters, views of ``flat``."""

    flat: Tensor  # all of those below, in this order
    sums: Tensor  # of the norm's weight and bias, and of biases from the first on
    few: Tensor  # (F, C)
    weight: Tensor  # (D, C)

    @classmethod
    def of(cls, flat_grad: Tensor, sizes: Sizes) -> Gradients:
        """Take the vector apart."""
        channels, outputs = sizes.channels, sizes.outputs
        lengths = [sizes.sums, sizes.few * channels, outputs * channels]
        sums, few, weight = flat_grad.split(lengths)
        return cls(flat_grad, sums, few.view(-1, channels), weight.view(outputs, channels))

    def scale_first(self, projections: Projections) -> None:
        """Multiply the gradients of the first projection's parameters by its scale."""
        first, scale = projections.first, projections.first_scale
        if scale != 1:
            self.weight[:first] *= scale
            if projections.sizes.first_biased == 0:
                self.sums[2 * projections.sizes.channels :][:first] *= scale


def _joined(weights: Sequence[Tensor], biases: Sequence[Tensor], biased: Sequence[bool]) -> Tensor:
    """Biases from the first on as one vector, zeros for projections without one."""
    skipped, remaining = biased.index(True), iter(biases)
    pairs = zip(weights[skipped:], biased[skipped:])
    parts = [next(remaining) if has else weight.new_zeros(len(weight)) for weight, has in pairs]
    return join(parts, 0).contiguous()
