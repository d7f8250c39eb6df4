"""``scalefold distil``: predictions to chains that are trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalefold.cli.options import ConfigFiles, Overrides, ShardFolder, check_there, read_config
from scalefold.errors import InputError

app = typer.Typer()


@app.command(
    rich_help_panel="Data",
    epilog="Example: [cyan]scalefold distil predictions --alignments alignments -c my.yaml "
    "--shards results/my/shards --out distilled[/]",
)
def distil(
    predictions: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="What predict --out wrote.")
    ],
    *,
    config: ConfigFiles,
    shards: ShardFolder,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Shards with both kinds.")
    ],
    alignments: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="As for predict: <name>/a3m/*.a3m of each sequence."),
    ] = None,
    query_alone: Annotated[
        bool, typer.Option("--query-alone", help="As for predict: there are no alignments.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes.")] = 1,
    set_: Overrides = None,
) -> None:
    """Add predicted structures to shards, to train on both: self-distillation.

    The section distillation says which predictions are kept. distilled.tsv in the new folder has a
    line for each. Training draws them with sampling.distilled_share.
    """
    if (alignments is None) != query_alone:
        raise InputError(
            "say where the alignments of the sequences are (--alignments FOLDER), or that there "
            "are none (--query-alone)"
        )
    for path in predictions:
        check_there(path, "folder of predictions")
    loaded = read_config(config, set_)

    from scalefold.cli.logs import log_to_stderr
    from scalefold.distil.candidates import fates
    from scalefold.distil.run import distil as run

    _, verdicts = run(
        predictions, loaded, shards, out, alignments=alignments, jobs=jobs, console=log_to_stderr()
    )
    typer.echo(f"{out}: of {len(verdicts):,} predictions, {fates(verdicts)}")
