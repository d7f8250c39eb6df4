"""Configurations for the offline compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tests.kernels.offline.case import CompileCase, empty, recorded

from scalefold_kernels.ops.pointwise_attention import triton

# Heads and channels: templates', and some that fill no block.
_SIZES = [(4, 16), (3, 24)]


def compile_cases() -> Iterator[CompileCase]:
    """What the launches give to their kernels at four templates of 256 residues."""
    for heads, channels in _SIZES:
        q = empty(1, 65536, heads, channels)
        k = empty(1, 4, 65536, heads, channels)
        mask = empty(1, 4, dtype=torch.float32)
        launches: dict[str, Callable[[], Any]] = {
            "forward": partial(triton.forward, q, k, k, mask, q),
            "backward": partial(triton.backward, q, q, k, k, mask, q, k, k),
        }
        for arch in ("sm_80", "sm_90"):
            for direction, launch in launches.items():
                kernel = f"pointwise_attention_{direction}"
                described = f"{kernel} {arch} H={heads} C={channels}"
                yield recorded(triton, f"{kernel}_kernel", launch, described, arch)
