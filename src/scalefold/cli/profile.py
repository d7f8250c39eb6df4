"""``scalefold profile``: where a step's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalefold.cli.options import (
    ConfigFiles,
    Device,
    Overrides,
    ShardsOrFull,
    check_there,
    read_config,
)

app = typer.Typer()


@app.command(
    rich_help_panel="Tools",
    epilog="Example: [cyan]scalefold profile -c demo/mlperf.yaml --shards results/demo/shards "
    "--out profile[/]",
)
def profile(
    config: ConfigFiles,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Gets traces, costs.json, modules.json."
        ),
    ],
    shards: ShardsOrFull = None,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Show where a training step's time goes: by module, forward and backward, and by kernel.

    Traces (*.json.gz) open in https://ui.perfetto.dev or chrome://tracing.
    """
    checked = read_config(config, set_)
    if shards is not None:
        check_there(shards, "shard folder")

    from scalefold.bench.profile import profile_step
    from scalefold.bench.synthetic_shards import given_or_full
    from scalefold.cli.device import measured_device
    from scalefold.cli.logs import log_to_stderr

    with given_or_full(shards, checked.features) as folder:
        profile_step(checked, folder, out, device=measured_device(device), console=log_to_stderr())
