"""Records of the benchmark of kernels as one table of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from scalefold.bench.kernels.catalogue import chosen

_FLOOR: Final = "floor"
_OURS: Final = "ScaleFold"
_LAST: Final = ("torch.compile", "torch")
"""Columns at the right, after other implementations."""


def markdown_table(
    records: Sequence[Mapping[str, Any]],
    texts: Sequence[str] = (),
    *,
    beside: Sequence[str] = (),
    in_cache: bool = False,
) -> str:
    """Microseconds, forward / forward and backward: a line a case, a column an implementation.

    Parameters
    ----------
    records : sequence of mapping
        What `bench_kernels` wrote.
    texts : sequence of str
        Only cases whose setting or shape holds one of them; all, if there is none.
    beside : sequence of str
        Only these implementations beside ScaleFold; all, if there is none.
    in_cache : bool
        Times with inputs in the cache, where a floor of traffic with memory is none, instead of
        beyond it.
    """
    cases = [
        case
        for record in records
        for case in record["cases"]
        if chosen(case["setting"], case["shape"], texts)
    ]
    names = [_OURS, *(made["name"] for case in cases for made in case["implementations"])]
    kept = [n for n in dict.fromkeys(names) if not beside or n in (_OURS, *beside)]
    columns = sorted(kept, key=lambda name: _LAST.index(name) + 1 if name in _LAST else 0)
    if in_cache:
        head, key = ["in the cache", *columns], "seconds_in_cache"
    else:
        head, key = ["", _FLOOR, *columns], "seconds"
    rows = ([_name(case), *_times(case, head[1:], key)] for case in cases)
    return "\n".join([_line(head), "|" + "---|" * len(head), *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def _name(case: Mapping[str, Any]) -> str:
    """The shape; after the op, where it does not say of which."""
    op = case["op"].replace("_", " ")
    return case["shape"] if op in case["shape"].lower() else f"{op}, {case['shape']}"


def _times(case: Mapping[str, Any], columns: Sequence[str], key: str) -> list[str]:
    found = {made["name"]: made.get(key) for made in case["implementations"]}
    found[_FLOOR] = case["floor_seconds"]
    cells = {name: _cell(found.get(name)) for name in columns}
    cells[_OURS] = f"**{cells[_OURS]}**"
    return list(cells.values())


def _cell(seconds: Mapping[str, float] | None) -> str:
    if seconds is None:
        return "-"
    return " / ".join(_digits(1e6 * seconds[part]) for part in ("forward", "forward_backward"))


def _digits(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 20 else f"{microseconds:,.0f}"
