"""Commands of ``scalefold bench`` that time whole steps and whole chains."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from scalefold.cli.options import (
    ConfigFiles,
    Device,
    JsonFile,
    Overrides,
    ShardFolder,
    ShardsOrFull,
    check_there,
    checked_file,
    parse_variations,
    read_config,
)

app = typer.Typer()


@app.command(
    epilog="Example: [cyan]scalefold bench step -c demo/mlperf.yaml --shards "
    "results/demo/shards --vary 'training.recomputation=\\[none, full]' -o step.json[/]"
)
def step(
    config: ConfigFiles,
    out: JsonFile,
    shards: ShardsOrFull = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=[VALUE, …]",
            help="Try each of these values; give several keys for all combinations.",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(help="Time for the steps of each recycling count; their median is reported."),
    ] = 3.0,
    memory_gib: Annotated[
        list[float] | None,
        typer.Option(
            "--memory-gib",
            metavar="GIB",
            help="Limit torch to this memory, as on a smaller GPU. May be given several times.",
        ),
    ] = None,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Time whole training steps: by recycling count, launches, GPU-busy time, memory, FLOPs."""
    checked = read_config(config, set_)
    if shards is not None:
        check_there(shards, "shard folder")

    from scalefold.bench.step import bench_step
    from scalefold.bench.synthetic_shards import given_or_full
    from scalefold.cli.device import measured_device
    from scalefold.cli.logs import log_to_stderr

    with given_or_full(shards, checked.features) as folder:
        bench_step(
            checked,
            folder,
            out,
            vary=parse_variations(vary or []),
            seconds=seconds,
            memory_gib=memory_gib or (),
            device=measured_device(device),
            console=log_to_stderr(),
        )


@app.command(
    epilog="Example: [cyan]scalefold bench ladder -c demo/mlperf.yaml --shards "
    "results/demo/shards -o results/demo/ladder.json --plot ladder.svg[/]"
)
def ladder(
    config: ConfigFiles,
    shards: ShardFolder,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            callback=checked_file,
            help="JSON to write; rungs that it holds already are kept. As ladder.json in a run's "
            "folder it is shown in the run's report.",
        ),
    ],
    only: Annotated[
        list[str] | None, typer.Option(help="Measure only this rung. May be given several times.")
    ] = None,
    part: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Take over the rungs of another call's file: several GPUs can share the work.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=checked_file, help="Also draw it: .svg, .png or .pdf."
        ),
    ] = None,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Time the way from plain PyTorch to everything, one change of the configuration at a time."""
    from scalefold.bench.ladder import bench_ladder
    from scalefold.cli.device import measured_device
    from scalefold.cli.logs import log_to_stderr

    result = bench_ladder(
        read_config(config, set_),
        shards,
        out,
        only=only or (),
        parts=part or (),
        device=measured_device(device),
        console=log_to_stderr(),
    )
    if plot is not None:
        from scalefold.report.ladder import save_ladder

        save_ladder(result, plot)


@app.command(
    epilog="Example: [cyan]scalefold bench evaluation -c demo/mlperf.yaml -o evaluation.json[/]"
)
def evaluation(
    config: ConfigFiles,
    out: JsonFile,
    chains: Annotated[int, typer.Option(min=1, help="Number of made-up chains.")] = 180,
    rows: Annotated[int, typer.Option(min=1, help="Alignment rows of each.")] = 2_000,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Time the evaluation of made-up chains of lengths as in CAMEO, with random weights."""
    from scalefold.bench.evaluation import bench_evaluation
    from scalefold.cli.device import measured_device
    from scalefold.cli.logs import log_to_stderr

    bench_evaluation(
        read_config(config, set_),
        out,
        num_chains=chains,
        num_rows=rows,
        device=measured_device(device),
        console=log_to_stderr(),
    )


@app.command(
    epilog="Example: [cyan]scalefold bench prediction -c demo/mlperf.yaml -s preset=model_1 "
    "-o prediction.json[/]"
)
def prediction(
    config: ConfigFiles,
    out: JsonFile,
    length: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Residues of a chain to time. May be given several times. Default: none."
        ),
    ] = None,
    chains: Annotated[
        int, typer.Option(min=0, help="Number of chains of lengths as in the PDB.")
    ] = 12,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Time predictions by length and proteins an hour, with random weights and no templates."""
    from scalefold.bench.prediction import bench_prediction
    from scalefold.cli.device import measured_device
    from scalefold.cli.logs import log_to_stderr

    bench_prediction(
        read_config(config, set_),
        out,
        lengths=length or (),
        num_chains=chains,
        device=measured_device(device),
        console=log_to_stderr(),
    )


@app.command(
    epilog="Example: [cyan]torchrun --nproc-per-node 2 -m scalefold bench scaling "
    "-c demo/mlperf.yaml --shards results/demo/shards -o scaling.json[/]"
)
def scaling(
    config: ConfigFiles,
    # Not a `JsonFile`: each process would find the same wrong with it.
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSON to write.")],
    shards: ShardsOrFull = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps whose losses are compared.")] = 5,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Compare losses and step times of several processes, started by torchrun, with those of one.

    Each process has one sample a step. With -s parallel.dap=N, N processes share one.
    """
    from scalefold.bench.scaling import bench_scaling
    from scalefold.bench.synthetic_shards import given_or_full
    from scalefold.cli.device import measured_device
    from scalefold.cli.logs import log_to_stderr
    from scalefold.launcher import find_place
    from scalefold.parallel.agreement import on_all, on_first
    from scalefold.parallel.launch import divided, joined

    place = find_place()
    with joined(place, partial(measured_device, device, place)) as (mesh, chosen):
        on_first(mesh.world, partial(checked_file, out))
        checked = on_all(mesh.world, partial(read_config, config, set_))
        mesh = divided(
            mesh, checked.parallel.dap, place, mesh.world.size, checked.parallel.exchange
        )
        with given_or_full(shards, checked.features) as folder:
            bench_scaling(
                checked,
                folder,
                out,
                steps=steps,
                device=chosen,
                mesh=mesh,
                console=log_to_stderr(place),
            )
