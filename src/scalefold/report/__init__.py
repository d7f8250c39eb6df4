"""The report of a run: one HTML file that opens offline, and the same numbers as JSON.

``run.py`` goes through these in order:

1. ``inputs.py`` reads the files of a run, which ``shapes.py`` checks.
2. ``content.py`` makes the numbers and sentences: ``findings.py``, ``falls_behind.py``,
   ``other_run.py``, ``comparison.py``, ``groups.py``, ``calibration.py`` and others.
3. ``figures.py``, ``chain_figures.py`` and ``structure_figures.py`` draw, by ``svg.py``.
4. ``page.py`` fills the template.

``monitor.py`` serves the page during training. ``predictions.py`` is the page of predictions, and
``mlperf_log.py`` another format of the log.
"""

from scalefold.report.run import write_report

__all__ = ["write_report"]
