"""``scalefold monitor``: the report in a browser while training goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from scalefold.cli.options import check_there
from scalefold.cli.report import Beside, Key, RunFolder, RunShards

app = typer.Typer()


@app.command(
    rich_help_panel="Training",
    epilog="Example: [cyan]scalefold monitor results/demo[/]. From another machine: "
    "[cyan]ssh -L 8600:127.0.0.1:8600 cluster[/], then open http://127.0.0.1:8600/",
)
def monitor(
    run: RunFolder,
    key: Key = None,
    shards: RunShards = None,
    beside: Beside = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8600,
    every: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Between two looks at the run.")
    ] = 10.0,
) -> None:
    """Show a run's report in a browser, up to date while training goes on.

    The page is for this machine alone, at 127.0.0.1. Nothing is written. Ctrl-C ends it.
    """
    check_there(run, "run folder")

    from scalefold.report.monitor import Monitor

    page = Monitor(run, key, shards, port, every, beside)
    typer.echo(f"{page.address}  (Ctrl-C ends)")
    page.serve()
