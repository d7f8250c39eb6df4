"""Configurations for the offline compilation.

The launches run on tensors without memory, see `recorded`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from tests.kernels.offline.case import CompileCase, empty, recorded

from scalefold_kernels.ops.outer_product_operands import triton

_NUM_SEQ, _NUM_RES, _CHANNELS = 128, 256, 32


def compile_cases() -> Iterator[CompileCase]:
    """Every kernel at the channels of the MSA and of the extra MSA."""
    for arch in ("sm_80", "sm_90"):
        for channels in (64, 256):
            for name, launch in _launches(channels).items():
                kernel, described = f"outer_product_operands_{name}_kernel", f"M={channels} {arch}"
                yield recorded(triton, kernel, launch, f"operands {name} {described}", arch)


def _launches(channels: int) -> dict[str, partial[None]]:
    m = empty(1, _NUM_SEQ, _NUM_RES, channels)
    both = empty(2, 1, _NUM_RES, _CHANNELS, _NUM_SEQ)
    mask = empty(1, _NUM_SEQ, _NUM_RES, dtype=torch.float32)
    row, column, weight = empty(channels), empty(_CHANNELS), empty(_CHANNELS, channels)
    parameters = triton.Parameters(row, row, weight, column, weight, column)
    gradients = empty(2 * channels + 2 * _CHANNELS * (channels + 1))
    return {
        "forward": partial(triton.forward, m, mask, parameters, both),
        "backward": partial(triton.backward, both, m, mask, parameters, m, m, gradients),
    }
