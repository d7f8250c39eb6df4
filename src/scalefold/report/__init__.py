"""The report of a run: one HTML file that opens offline, and the same numbers as JSON."""

from scalefold.report.run import write_report

__all__ = ["write_report"]
