"""``scalefold bench loader``: how long a step waits for its samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalefold.cli.options import ConfigFiles, Device, JsonFile, Overrides, read_config

app = typer.Typer()


@app.command(
    epilog="Example: [cyan]scalefold bench loader -c demo/mlperf.yaml --delay-every 50 "
    "--delay-seconds 6 -o loader.json[/]"
)
def loader(
    config: ConfigFiles,
    out: JsonFile,
    shards: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Default: made-up shards with the next two sizes."),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Alignment rows of made-up chains.")] = 10_000,
    residues: Annotated[int, typer.Option(min=16, help="Residues of made-up chains.")] = 384,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps.")] = 100,
    step_seconds: Annotated[float, typer.Option(min=0, help="Length of a step.")] = 0.2,
    delay_every: Annotated[
        int, typer.Option(min=0, help="Delay every nth sample; 0 delays none.")
    ] = 0,
    delay_seconds: Annotated[float, typer.Option(min=0, help="Length of a delay.")] = 0.0,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Time the loader beside torch's DataLoader, with and without delayed samples."""
    from scalefold.bench.loader import Delay, bench_loader
    from scalefold.bench.synthetic_shards import given_or_made_up
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr

    with given_or_made_up(shards, lengths=[residues] * 8, num_rows=rows, num_hits=40) as folder:
        bench_loader(
            read_config(config, set_),
            folder,
            out,
            steps=steps,
            step_seconds=step_seconds,
            delay=Delay(delay_every, delay_seconds),
            device=torch_device(device),
            console=log_to_stderr(),
        )
