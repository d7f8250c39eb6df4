"""What was found out about one thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing: what was looked at, what is so, and whether it must be fixed before training."""

    subject: str
    said: str
    wrong: bool = False

    def __str__(self) -> str:
        return f"{self.subject:10} {'WRONG: ' if self.wrong else ''}{self.said}"


def verdict(findings: Sequence[Finding]) -> str:
    """In one line."""
    wrong = [finding.subject for finding in findings if finding.wrong]
    if not wrong:
        return "verdict: all is well"
    return f"verdict: {len(wrong)} of {len(findings)} things to fix: {', '.join(wrong)}"
