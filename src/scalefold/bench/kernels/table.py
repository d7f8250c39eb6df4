"""The benchmark of kernels as text for a terminal."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

TABLE_WIDTH = 136
"""Columns of a table that goes into a file."""

_PARTS = ("forward", "forward_backward")
_MEASURES = ("TB/s", "TFLOP/s", "of floor", "peak MiB", "error")


def heading(result: dict[str, Any]) -> str:
    """What all the numbers have in common, in three lines."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return (
        f"{result['device']}, {result['dtype']}, {versions}\n"
        f"copy {result['copy_bytes_per_second'] * 1e-12:.2f} TB/s, matrix product "
        f"{result['matmul_flops_per_second'] * 1e-12:.0f} TFLOP/s: the floors' rates\n"
        "Median of replayed CUDA graphs, inputs beyond the cache and in it; * between events, with "
        "launches"
    )


def case_table(row: dict[str, Any]) -> Table | str:
    """One case: a line an implementation, or why there are no times."""
    title = f"{row['op']}: {row['shape']} ({row['setting']})"
    agreement = row["agreement"]
    if not row["right"]:
        return (
            f"{title}: WRONG, so no times: {agreement['tensor']} has error {agreement['error']:.2e}"
            f" against float64, limit {agreement['limit']:.2e} "
            f"(torch has {agreement['torch_error']:.2e})"
        )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for name in ("forward µs", "+ backward µs", "in cache µs", *_MEASURES):
        table.add_column(name, justify="right")
    floor = row["floor_seconds"]
    table.add_row("floor", *(f"{floor[p] * 1e6:.1f}" for p in _PARTS), *[""] * 6)
    failed = []
    for implementation in row["implementations"]:
        if "failed" in implementation:
            failed.append(f"{implementation['name']} failed: {implementation['failed']}")
        else:
            table.add_row(implementation["name"], *_numbers(row, implementation))
    table.caption, table.caption_justify = "\n".join(failed), "left"
    return table


def _numbers(row: dict[str, Any], implementation: dict[str, Any]) -> list[str]:
    error = implementation["error"]
    shown = f"{error:.1e}" if error is not None else "-"
    if implementation.get("out_of_memory"):
        return ["out of memory", *["-"] * 6, shown]
    seconds, floor = implementation["seconds"], row["floor_seconds"]
    work = {
        name: (row[name]["forward"], row[name]["forward"] + row[name]["backward"])
        for name in ("bytes", "flops")
    }
    rates = [
        " / ".join(
            f"{amount / seconds[p] * 1e-12:.{digits}f}"
            for p, amount in zip(_PARTS, work[name], strict=True)
        )
        for name, digits in (("bytes", 2), ("flops", 0))
    ]
    marks = {"graph": "", "events": "*"}
    return [
        *(f"{seconds[p] * 1e6:.1f}{marks[implementation['method'][p]]}" for p in _PARTS),
        " / ".join(f"{implementation['seconds_in_cache'][p] * 1e6:.1f}" for p in _PARTS),
        *rates,
        " / ".join(f"{100 * floor[p] / seconds[p]:.0f} %" for p in _PARTS),
        f"{implementation['peak_bytes'] / 2**20:.0f}",
        shown,
    ]
