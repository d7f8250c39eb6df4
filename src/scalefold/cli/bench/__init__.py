"""``scalefold bench …``: measure, and write the numbers with where they come from."""

from __future__ import annotations

import typer

from scalefold.cli.bench import curves, loader, steps

app = typer.Typer(no_args_is_help=True, help="Measure speed and memory on this machine.")
for module in (steps, curves, loader):
    app.add_typer(module.app)
