"""``scalefold bench …``: measure, and write the numbers with where they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalefold.cli.options import ConfigFiles, Device, Overrides, ShardFolder, read_config

app = typer.Typer(no_args_is_help=True, help="Measure speed and memory on this machine.")


@app.callback()
def main() -> None:
    """Measure speed and memory on this machine."""


@app.command(
    epilog="Example: [cyan]scalefold bench step -c demo/config.yaml -s preset=mlperf "
    "-s training.global_batch_size=1 --precision bf16 --shards results/demo/shards -o step.json[/]"
)
def step(
    config: ConfigFiles,
    shards: ShardFolder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSON to write.")],
    precision: Annotated[
        list[str], typer.Option(help="fp32, tf32 or bf16; several times for several.")
    ],
    recomputation: Annotated[
        list[str] | None, typer.Option(help="none or full; several times for several.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed steps of each recycling count.")] = 3,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Time whole training steps by recycling count, and their peak memory."""
    from scalefold.bench.step import bench_step
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr

    bench_step(
        read_config(config, set_),
        shards,
        out,
        precisions=precision,
        recomputations=recomputation or ["none"],
        repeats=repeats,
        device=torch_device(device),
        console=log_to_stderr(),
    )
