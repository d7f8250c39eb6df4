"""Configurations for the offline compilation: every rule of the tables, and the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from tests.kernels.offline.case import CompileCase, recorded

from scalefold_kernels import sums
from scalefold_kernels.sums import column_sums_kernel, sum_partials_kernel
from scalefold_kernels.tiles import Config, configured, read_table


def compile_cases() -> list[CompileCase]:
    """Both stages, from and to bfloat16; several last ones in one."""
    return [
        *_cases("sum_partials", sum_partials_kernel, {"partial_ptr": "fp32", "out_ptr": "bf16"}),
        *_cases("column_sums", column_sums_kernel, {"x_ptr": "bf16", "partial_ptr": "fp32"}),
        recorded(sums, "sum_several_kernel", _several, "sum_several", "sm_90"),
    ]


def _several() -> None:
    """Parts of every rule's size."""
    shapes = (2, 1 << 21), (4, 1 << 21), (32, 1 << 17), (1024, 128)
    new = partial(torch.empty, device="meta")
    outs = [new(width, dtype=torch.bfloat16) for _, width in shapes]
    sums.sum_several([new(*shape) for shape in shapes], outs)


def _cases(table: str, kernel: Any, pointers: dict[str, str]) -> Iterator[CompileCase]:
    default: tuple[tuple[str, ...], Config] = ("sm_80", "sm_90"), read_table(table)["default"]
    rules = [((arch,), config) for arch, _, config in configured(table)]
    for archs, config in (default, *rules):
        signature = {
            name: f"*{pointers[name]}:16" if name in pointers else "i32"
            for name in kernel.arg_names
            if name not in config
        }
        launch = {k: config[k] for k in ("num_warps", "num_stages") if k in config}
        constexprs = {k: v for k, v in config.items() if k not in launch}
        described = ", ".join(f"{k}={v}" for k, v in config.items())
        yield CompileCase(
            f"{table} {described}", kernel, signature, constexprs, architectures=archs, **launch
        )
