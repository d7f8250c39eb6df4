"""Configurations for the offline compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from tests.kernels.offline.case import CompileCase, recorded
from torch import Tensor

from scalefold_kernels.ops.pointwise_attention import triton

# Heads and channels: templates', and some that fill no block.
_SIZES = [(4, 16), (3, 24)]


def compile_cases() -> Iterator[CompileCase]:
    """What the launches give to their kernels at four templates of 256 residues."""
    for heads, channels in _SIZES:
        q = _empty(1, 65536, heads, channels)
        k = _empty(1, 4, 65536, heads, channels)
        mask = torch.empty(1, 4, device="meta")
        launches: dict[str, Callable[[], Any]] = {
            "forward": partial(triton.forward, q, k, k, mask, q),
            "backward": partial(triton.backward, q, q, k, k, mask, q, k, k),
        }
        for arch in ("sm_80", "sm_90"):
            for direction, launch in launches.items():
                kernel = f"pointwise_attention_{direction}"
                described = f"{kernel} {arch} H={heads} C={channels}"
                with patch.object(triton, "architecture", lambda _, arch=arch: arch):
                    yield recorded(triton, f"{kernel}_kernel", launch, described, arch)


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")
