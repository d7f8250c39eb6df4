"""Results of the benchmark as text: a block a case, or one table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from scalefold_kernels.bench.cases import chosen

_PARTS: Final = ("forward", "forward_backward")
_FLOOR: Final = "floor"
_OURS: Final = "ScaleFold"
_LAST: Final = ("torch.compile", "torch")
"""Columns at the right, after other implementations."""


def heading(record: Mapping[str, Any]) -> str:
    """What all the numbers have in common."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    return (
        f"{record['device']}, {record['dtype']}, {versions}\n"
        f"copy {record['copy_bytes_per_second'] * 1e-12:.2f} TB/s, matrix product "
        f"{record['matmul_flops_per_second'] * 1e-12:.0f} TFLOP/s: the floors' rates\n"
        "µs, forward / forward and backward, inputs beyond the cache; * between events"
    )


def block(case: Mapping[str, Any]) -> str:
    """One case: a line an implementation, or why there are no times."""
    title = f"\n{case['op']}: {case['shape']} ({case['setting']})"
    if not case["right"]:
        return f"{title}\n  {agreement_line(case['agreement'])}: no times"
    lines = [title, f"  {_FLOOR:20}{_microseconds(case['floor_seconds']):>20}"]
    for made in case["implementations"]:
        lines.append(f"  {made['name']:20}{_numbers(made, case['floor_seconds'])}")
    return "\n".join(lines)


def agreement_line(agreement: Mapping[str, Any]) -> str:
    """Whether a case is right."""
    return (
        f"{'right' if agreement['good'] else 'WRONG'}: {agreement['tensor']} has error "
        f"{agreement['error']:.1e} against float64, limit {agreement['limit']:.1e} "
        f"(torch has {agreement['torch_error']:.1e})"
    )


def markdown_table(records: Sequence[Mapping[str, Any]], texts: Sequence[str] = ()) -> str:
    """Microseconds, forward / forward and backward: a line a case, a column an implementation.

    Parameters
    ----------
    records : sequence of mapping
        What `scalefold_kernels.bench.run` wrote.
    texts : sequence of str
        Only cases whose setting or shape holds one of them; all, if there is none.
    """
    cases = [
        case
        for record in records
        for case in record["cases"]
        if chosen(case["setting"], case["shape"], texts)
    ]
    names = [_OURS, *(made["name"] for case in cases for made in case["implementations"])]
    columns = sorted(
        dict.fromkeys(names), key=lambda name: _LAST.index(name) + 1 if name in _LAST else 0
    )
    head = ["", _FLOOR, *columns]
    rows = ([_name(case), *_times(case, columns)] for case in cases)
    return "\n".join([_line(head), "|" + "---|" * len(head), *map(_line, rows)])


def _numbers(made: Mapping[str, Any], floor: Mapping[str, float]) -> str:
    if "failed" in made:
        return f"failed: {made['failed']}"
    if made.get("out_of_memory"):
        return "out of memory"
    mark = "*" if "events" in made["method"].values() else ""
    shares = " / ".join(f"{100 * floor[part] / made['seconds'][part]:.0f} %" for part in _PARTS)
    error = "-" if made["error"] is None else f"{made['error']:.1e}"
    return (
        f"{_microseconds(made['seconds']) + mark:>20}   in cache "
        f"{_microseconds(made['seconds_in_cache']):>17}   of floor {shares:>12}   peak "
        f"{made['peak_bytes'] / 2**20:.0f} MiB   error {error}"
    )


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def _name(case: Mapping[str, Any]) -> str:
    """The shape; after the op, where it does not say of which."""
    op = case["op"].replace("_", " ")
    return case["shape"] if op in case["shape"].lower() else f"{op}, {case['shape']}"


def _times(case: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    found = {made["name"]: made.get("seconds") for made in case["implementations"]}
    cells = {name: _microseconds(found.get(name)) for name in columns}
    cells[_OURS] = f"**{cells[_OURS]}**"
    return [_microseconds(case["floor_seconds"]), *cells.values()]


def _microseconds(seconds: Mapping[str, float] | None) -> str:
    if seconds is None:
        return "-"
    return " / ".join(_digits(1e6 * seconds[part]) for part in _PARTS)


def _digits(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 20 else f"{microseconds:,.0f}"
