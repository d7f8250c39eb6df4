"""``scalefold relax``: fix the geometry of predicted structures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalefold.cli.options import EXIT_INPUT_ERROR, check_there

app = typer.Typer()


@app.command(
    rich_help_panel="Prediction",
    epilog="Example: [cyan]scalefold relax predictions --out relaxed[/]",
)
def relax(
    predictions: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="What predict --out wrote.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Gets a folder a target, and relaxations.tsv."
        ),
    ],
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads on the CPU. Default: OpenMM's fastest device."),
    ] = None,
) -> None:
    """Relax the best model of each prediction by OpenMM, and count violations before and after.

    The same command goes on where it was interrupted. A prediction that cannot be relaxed is named
    in a line of its own and in relaxations.tsv, the rest goes on, and the exit code is 2.
    """
    check_there(predictions, "folder of predictions")

    from scalefold.cli.logs import log_to_stderr
    from scalefold.relax.run import SUMMARY_FILE, relax_predictions

    lines = relax_predictions(predictions, out, threads, log_to_stderr())
    failed = sum(line["fate"] == "failed" for line in lines)
    typer.echo(f"{out / SUMMARY_FILE}: {len(lines) - failed} of {len(lines)} relaxed")
    if failed:
        raise typer.Exit(EXIT_INPUT_ERROR)
