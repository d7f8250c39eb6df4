"""Configurations for the offline compilation: every rule of the tables, and the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scalefold_kernels.compilation import CompileCase
from scalefold_kernels.sums.kernel import column_sums_kernel, sum_partials_kernel
from scalefold_kernels.tiles import Tile, configured, read_table


def compile_cases() -> list[CompileCase]:
    """Both stages, from and to bfloat16."""
    return [
        *_cases("sum_partials", sum_partials_kernel, {"partial_ptr": "fp32", "out_ptr": "bf16"}),
        *_cases("column_sums", column_sums_kernel, {"x_ptr": "bf16", "partial_ptr": "fp32"}),
    ]


def _cases(table: str, kernel: Any, pointers: dict[str, str]) -> Iterator[CompileCase]:
    default: tuple[tuple[str, ...], Tile] = ("sm_80", "sm_90"), read_table(table)["default"]
    rules = [((arch,), tile) for arch, _, tile in configured(table)]
    for archs, tile in (default, *rules):
        signature = {
            name: f"*{pointers[name]}:16" if name in pointers else "i32"
            for name in kernel.arg_names
            if name not in tile
        }
        launch = {k: tile[k] for k in ("num_warps", "num_stages") if k in tile}
        constexprs = {k: v for k, v in tile.items() if k not in launch}
        described = ", ".join(f"{k}={v}" for k, v in tile.items())
        yield CompileCase(
            f"{table} {described}", kernel, signature, constexprs, architectures=archs, **launch
        )
