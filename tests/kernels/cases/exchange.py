"""Configurations for the offline compilation: one that puts parts side by side, one that sums."""

from __future__ import annotations

from functools import partial

import torch
from tests.kernels.offline.case import CompileCase, recorded

from scalefold_kernels.ops.exchange import Inbox, Parts, triton


def compile_cases() -> list[CompileCase]:
    """Of a pair representation of 256 residues on four GPUs."""
    return [
        recorded(triton, "exchange_kernel", partial(_exchange, sum_up), f"{name} {arch}", arch)
        for sum_up, name in ((False, "side by side"), (True, "sum"))
        for arch in ("sm_80", "sm_90")
    ]


def _exchange(sum_up: bool) -> None:
    new = partial(torch.empty, device="meta")
    addresses, counts = (new(n, dtype=torch.int64) for n in (4, 208))
    inbox = Inbox(new(0), addresses, 0, 2**25, counts)
    x, out = (new(1, rows, 256, 128, dtype=torch.bfloat16) for rows in (256, 64))
    if sum_up:
        triton.exchange(inbox, x, out, Parts.of_reduce(x.shape, 1, 4), sum_up=True)
    else:
        triton.exchange(inbox, out, x, Parts.of_gather(out.shape, 1, 4), sum_up=False)
