"""Errors that the user can fix."""

from __future__ import annotations

from collections.abc import Sequence


class InputError(ValueError):
    """Bad input: a file, key or shape that cannot be used.

    The message names the file or key, states what was found and what was expected, and says how to
    fix it. The command line prints it without a traceback.
    """


class UnreadableError(InputError):
    """A file is there but may not be read. Nothing else is known to be wrong with it."""

    @classmethod
    def of(cls, path: object) -> UnreadableError:
        """The error of the file or folder."""
        return cls(
            f"{path}: may not be read: you have no permission. Ask the owner for it (chmod "
            "a+r, for folders a+rx), or use your own copy"
        )


class ChecksumError(InputError):
    """Stored bytes do not have the hash that was recorded for them."""


class ElsewhereError(InputError):
    """An error of the input that another process of the same training run found, and prints."""


class RankLostError(RuntimeError):
    """The exchange with other processes of a training run failed; says what is known of them."""


def counted(number: int, noun: str) -> str:
    """A number of things in words: ``1 chain``, ``2 chains``; the plural takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(findings: Sequence[str], shown: int = 8) -> str:
    """The first few findings, each on an indented line after the text before; the rest counted."""
    rest = len(findings) - shown
    lines = [*findings[:shown], *([f"and {rest} more"] if rest > 0 else [])]
    return "".join(f"\n  {line}" for line in lines)


def first_few(items: Sequence[object], shown: int = 3) -> str:
    """The first few items in one line; the rest counted."""
    rest = len(items) - shown
    return ", ".join(map(str, items[:shown])) + (f" and {rest:,} more" if rest > 0 else "")
