"""``scalefold report``: a run's page."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from scalefold.cli.options import Overrides, Stage, check_there, checked_file, read_stage
from scalefold.errors import InputError

logger = logging.getLogger(__name__)
app = typer.Typer()

RunFolder = Annotated[Path, typer.Argument(help="The run's folder.")]
Key = Annotated[
    str | None,
    typer.Option(
        help="Which training, if the run has several: its key, as `scalefold config key` prints it."
    ),
]
RunShards = Annotated[
    Path | None,
    typer.Option("--shards", metavar="FOLDER", help="Default: shards/ in the run's folder."),
]
Beside = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The report.json of another run, to show its training beside this one's.",
    ),
]


@app.command(
    rich_help_panel="Training",
    epilog="Examples: [cyan]scalefold report results/demo[/], "
    "[cyan]scalefold report results/mine --shards results/demo/shards[/]",
)
def report(
    run: RunFolder,
    key: Key = None,
    shards: RunShards = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            callback=checked_file,
            help="HTML to write, with JSON beside it. Default: report.html in the run's folder.",
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Refuse evaluations that were made with other settings than this configuration's, "
            "and show what its section report names.",
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="An evaluation of other weights, as evaluate --out writes it, to compare with the "
            "last one chain by chain. May be given several times.",
        ),
    ] = None,
    beside: Beside = None,
    stage: Stage = None,
    set_: Overrides = None,
) -> None:
    """Write a run's report.html, which opens offline, and report.json.

    This works at any time, also while training goes on. The report names what is missing.

    The run's folder holds weights/<key>/ from train --out, evaluation/<key>/step-<number>.json from
    evaluate --out, and shards/. <key> is any name, the same in both. A file of weights has an
    evaluation only; if there are several, --key names one.
    """
    check_there(run, "run folder")
    if (stage or set_) and not config:
        raise InputError("--stage and --set change a --config: give that too")
    loaded = read_stage(config, set_, stage) if config else None
    html = run / "report.html" if out is None else out
    logger.info("reading %s, and drawing its figures", run)

    from scalefold.report import write_report

    settings = loaded.evaluation if loaded else None
    compared = [*(loaded.report.against if loaded else ()), *(against or ())]
    beside = beside or (loaded.report.beside if loaded else None)
    json = html.with_suffix(".json")
    content = write_report(run, key, shards, html, json, settings, compared, beside)
    for note in content["notes"]:
        typer.echo(f"note: {note}", err=True)
    for finding in content["findings"]:
        typer.echo(f"stands out: {finding}", err=True)
    for split, scores in content["summary"]["lddt_ca"].items():
        if last := scores["last"]:
            said = f"mean lDDT-Cα {last['value']:.3f} over {last['over']}"
            typer.echo(f"step {last['step']}, {split}: {said}")
            # The last may be the best, and the first: each step once.
            others = {scores[name]["step"]: name for name in ("first", "best")}
            others.pop(last["step"], None)
            for step, name in sorted(others.items(), reverse=True):
                point = scores[name]
                typer.echo(f"  {name} {point['value']:.3f} over {point['chains']} at step {step}")
    typer.echo(f"{html}, {json}")
