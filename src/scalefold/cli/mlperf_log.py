"""``scalefold mlperf-log``: a run in the benchmark's own format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalefold.cli.options import check_there
from scalefold.cli.report import Key, RunFolder, RunShards

app = typer.Typer()


@app.command(
    rich_help_panel="Tools",
    epilog="Example: [cyan]scalefold mlperf-log results/mlperf --out mlperf.log[/]",
)
def mlperf_log(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Log to write.")],
    key: Key = None,
    shards: RunShards = None,
) -> None:
    """Write a run's log in MLPerf's format (:::MLLOG), from the files of the run."""
    check_there(run, "run folder")

    from scalefold.report.mlperf_log import write_mlperf_log

    write_mlperf_log(run, key, run / "shards" if shards is None else shards, out)
    typer.echo(out)
