"""Work that can fail on one rank: all ranks go on, or all end, and the error is reported once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from scalefold.errors import ElsewhereError, InputError
from scalefold.parallel.ranks import Ranks

T = TypeVar("T")


def on_first(ranks: Ranks, action: Callable[[], T]) -> T:
    """Do something on rank 0 alone; all get its result.

    Raises
    ------
    InputError, PermissionError
        What the action raised; on the other ranks as `ElsewhereError`.
    """
    outcome: tuple[T | None, str | None] | None = None
    if ranks.rank == 0:
        try:
            outcome = action(), None
        except (InputError, PermissionError) as error:
            ranks.broadcast_object((None, str(error)))
            raise
    result, error_text = ranks.broadcast_object(outcome)
    if error_text is not None:
        raise ElsewhereError(error_text)
    return cast(T, result)


def on_all(ranks: Ranks, action: Callable[[], T]) -> T:
    """Do something on every rank. If it fails on one it fails on all, and the error is printed
    once.

    Raises
    ------
    InputError, PermissionError
        What the action raised here; as `ElsewhereError` where a lower rank has the same to say, or
        where it failed on other ranks only.
    """
    result, fault = None, None
    try:
        result = action()
    except (InputError, PermissionError) as error:
        fault = error
    faults = ranks.all_gather_object(None if fault is None else str(fault))
    if fault is not None and faults.index(str(fault)) == ranks.rank:
        raise fault
    for text in faults:
        if text is not None:
            raise ElsewhereError(text)
    return cast(T, result)


def check_same(ranks: Ranks, what: str, value: str) -> None:
    """Check that all ranks were started with the same thing.

    Raises
    ------
    InputError
        On the ranks where it is another than on rank 0.
    """
    first = ranks.broadcast_object(value)
    if value != first:
        raise InputError(
            f"rank {ranks.rank} has {what} {value}, rank 0 has {first}: start all ranks with the "
            "same command, and from a file system that they share"
        )
