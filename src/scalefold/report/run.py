"""Write the report of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from scalefold.config.schema import EvaluationConfig
from scalefold.errors import InputError
from scalefold.evaluate.up_to_date import check_settings
from scalefold.io.atomic import write_bytes
from scalefold.report.content import Content, report_content
from scalefold.report.inputs import read_evaluation, read_run
from scalefold.report.other_run import read_report
from scalefold.report.page import render_page


def write_report(
    run: Path,
    key: str | None = None,
    shards: Path | None = None,
    out_html: Path | None = None,
    out_json: Path | None = None,
    settings: EvaluationConfig | None = None,
    against: Sequence[Path] = (),
    beside: Path | None = None,
) -> Content:
    """Write the HTML report and the same numbers as JSON, each atomically.

    May be called at any time, also while training goes on or after it failed. The report names what
    is missing or damaged. The same files give the same bytes.

    Parameters
    ----------
    key : str, optional
        Which of its training runs (`scalefold.config.run_key`); default the only one.
    shards : Path, optional
        Shards that the run was trained on; default ``shards`` in the run's folder.
    out_html, out_json : Path, optional
        Default ``report.html`` and ``report.json`` in the run's folder.
    settings : EvaluationConfig, optional
        Refuse evaluations that were made with others.
    against : sequence of Path, optional
        Evaluations of other weights, which the last one is compared with: those of another
        training, or of a file of weights.
    beside : Path, optional
        ``report.json`` of another run, whose training is shown beside this one's.

    Returns
    -------
    dict
        The content of ``out_json``, see `report_content`.

    Raises
    ------
    InputError
        If there is no such run folder, training or ``shards``, nothing in the folder to report on,
        evaluations of other ``settings``, a file of ``against`` is no evaluation, ``beside`` is no
        report, both files have one name, or the report cannot be written.
    """
    out_html, out_json = out_html or run / "report.html", out_json or run / "report.json"
    if out_html == out_json:
        raise InputError(
            f"{out_html}: the JSON is written there; name the HTML file, {out_html.stem}.html"
        )
    if shards is not None and not shards.is_dir():
        raise InputError(f"{shards}: no such shard folder. Correct the path, or leave it out")
    files = read_run(run, key, run / "shards" if shards is None else shards)
    if settings is not None:
        check_settings(files.evaluations, settings)
    others = [(_name_of(path), read_evaluation(path)) for path in against]
    other_run = None if beside is None else read_report(beside)
    content = report_content(run.resolve().name, files, others, other_run)
    page = render_page(content, files.evaluations)
    text = json.dumps(content, indent=1, allow_nan=False)
    write_bytes(out_json, (text + "\n").encode())
    write_bytes(out_html, page.encode("utf-8", "replace"))  # JSON may name lone surrogates
    return content


def _name_of(path: Path) -> str:
    """Folder and name of an evaluation: names alone are often the same."""
    return f"{path.resolve().parent.name}/{path.stem}"
