"""``scalefold bench curves``: does a faster training learn as well?"""

from __future__ import annotations

from typing import Annotated

import typer

from scalefold.cli.options import ConfigFiles, Device, JsonFile, Overrides, ShardFolder, read_config

app = typer.Typer()


@app.command(
    epilog="Example: [cyan]scalefold bench curves -c demo/curves.yaml --shards "
    "results/demo/shards --reference training.precision=fp32 --reference "
    "training.kernels=torch --reference training.cuda_graphs=off -o curves.json[/]"
)
def curves(
    config: ConfigFiles,
    shards: ShardFolder,
    reference: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE", help="What is different in the reference, key by key."),
    ],
    out: JsonFile,
    seeds: Annotated[int, typer.Option(min=2, help="Number of seeds.")] = 3,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Compare loss curves with a reference's, several seeds each; exit code 1 beyond the spread."""
    from scalefold.bench.curves import bench_curves
    from scalefold.cli.device import measured_device
    from scalefold.cli.logs import log_to_stderr

    result = bench_curves(
        read_config(config, set_),
        read_config(config, [*(set_ or []), *reference]),
        shards,
        out,
        seeds=range(seeds),
        device=measured_device(device),
        console=log_to_stderr(),
    )
    raise typer.Exit(0 if result["within_spread"] else 1)
