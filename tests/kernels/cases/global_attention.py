"""Configurations for the offline compilation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from unittest.mock import patch

import torch
from tests.kernels.offline.case import CompileCase, recorded
from torch import Tensor

from scalefold_kernels.attention.pooled import op
from scalefold_kernels.attention.pooled.arguments import checked

# (channels, heads, channels of a head): the extra MSA's, and some that fill no block
_SIZES = [(64, 8, 8), (24, 3, 5)]


def compile_cases() -> list[CompileCase]:
    """What the launches give to their kernels; each architecture with the tile that it takes."""
    settings = product(_SIZES, (torch.bfloat16, torch.float32), ("sm_80", "sm_90"))
    return [case for size, dtype, arch in settings for case in _cases(*size, dtype, arch)]


def _cases(
    channels: int, heads: int, head: int, dtype: torch.dtype, arch: str
) -> Iterator[CompileCase]:
    def new(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    every = heads * head
    x, mask = new(1, 1024, 256, channels), new(1, 1024, 256).float()
    row, wide, narrow = new(channels), new(every, channels), new(head, channels)
    parameters = checked(
        x, mask, row, row, wide, narrow, narrow, wide, new(every), new(channels, every), row
    )
    columns = op.results(x, parameters)[1:]
    backward = op.Backward(x, x, mask, parameters, columns)
    launches = {
        "forward": lambda: op.forward(x, mask, parameters),
        "values": backward.values,
        "query": backward.query,
        "rows": backward.rows,
    }
    name = f"C={channels} H={heads} {str(dtype).removeprefix('torch.')} {arch}"
    with patch.object(op, "architecture", lambda _: arch):
        for kernel, launch in launches.items():
            described = f"global_attention_{kernel}"
            yield recorded(op, f"{described}_kernel", launch, f"{described} {name}", arch)
