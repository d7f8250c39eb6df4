"""``scalefold bench …``: measure, and write the numbers with where they come from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalefold.cli.options import (
    ConfigFiles,
    Device,
    Overrides,
    ShardFolder,
    parse_variations,
    read_config,
)
from scalefold.errors import InputError

if TYPE_CHECKING:
    import torch

app = typer.Typer(no_args_is_help=True, help="Measure speed and memory on this machine.")


def register(main_app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    main_app.add_typer(app, name="bench")
    main_app.command(
        rich_help_panel="Training",
        epilog="Example: [cyan]scalefold profile -c demo/mlperf.yaml --shards results/demo/shards "
        "--out profile[/]",
    )(profile)


@app.callback()
def main() -> None:
    """Measure speed and memory on this machine."""


Seconds = Annotated[
    float,
    typer.Option(help="Repeat steps of each recycling count for so long; the median counts."),
]
MemoryLimits = Annotated[
    list[float] | None,
    typer.Option(
        "--memory-gib",
        metavar="GIB",
        help="Let torch allocate no more than this, as on a smaller GPU; also several times.",
    ),
]


@app.command(
    epilog="Example: [cyan]scalefold bench step -c demo/mlperf.yaml --shards results/demo/shards "
    "--vary 'training.recomputation=\\[none, full]' -o step.json[/]"
)
def step(
    config: ConfigFiles,
    shards: ShardFolder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSON to write.")],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=[VALUE, …]",
            help="Try each of these values; give several keys for all combinations.",
        ),
    ] = None,
    seconds: Seconds = 3.0,
    memory_gib: MemoryLimits = None,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Time whole training steps: by recycling count, launches, GPU-busy time, memory, FLOPs."""
    from scalefold.bench.step import bench_step
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr

    bench_step(
        read_config(config, set_),
        shards,
        out,
        vary=parse_variations(vary or []),
        seconds=seconds,
        memory_gib=memory_gib or (),
        device=torch_device(device),
        console=log_to_stderr(),
    )


@app.command(
    epilog="Example: [cyan]scalefold bench ladder -c demo/mlperf.yaml --shards results/demo/shards "
    "-o results/demo/ladder.json --plot ladder.svg[/]"
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
            help="JSON to write; rungs that it holds already are kept. As ladder.json in a run's "
            "folder it is shown in the run's report.",
        ),
    ],
    only: Annotated[
        list[str] | None, typer.Option(help="Measure only this rung; several times for several.")
    ] = None,
    part: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Take over the rungs of another call's file: several GPUs can share the work.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw it: .svg, .png or .pdf.")
    ] = None,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Time the way from plain PyTorch to everything, one change of the configuration at a time."""
    from scalefold.bench.ladder import bench_ladder
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr

    result = bench_ladder(
        read_config(config, set_),
        shards,
        out,
        only=only or (),
        parts=part or (),
        device=torch_device(device),
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
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSON to write.")],
    chains: Annotated[int, typer.Option(min=1, help="Number of made-up chains.")] = 180,
    rows: Annotated[int, typer.Option(min=1, help="Alignment rows of each.")] = 2_000,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Time the evaluation of made-up chains of lengths as in CAMEO, with random weights."""
    from scalefold.bench.evaluation import bench_evaluation
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr

    bench_evaluation(
        read_config(config, set_),
        out,
        num_chains=chains,
        num_rows=rows,
        device=torch_device(device),
        console=log_to_stderr(),
    )


@app.command(
    epilog="Example: [cyan]torchrun --nproc-per-node 2 -m scalefold bench scaling "
    "-c demo/mlperf.yaml --shards results/demo/shards -o scaling.json[/]"
)
def scaling(
    config: ConfigFiles,
    shards: ShardFolder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSON to write.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps whose losses are compared.")] = 5,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Compare losses and step times of several processes, started by torchrun, with those of one.

    Each process has one sample a step.
    """
    from scalefold.bench.scaling import bench_scaling
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr
    from scalefold.parallel.launch import find_place, joined
    from scalefold.parallel.ranks import on_all

    place = find_place()
    with joined(place, partial(torch_device, device, place)) as (mesh, chosen):
        bench_scaling(
            on_all(mesh.world, partial(read_config, config, set_)),
            shards,
            out,
            steps=steps,
            device=chosen,
            mesh=mesh,
            console=log_to_stderr(place),
        )


def profile(
    config: ConfigFiles,
    shards: ShardFolder,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Gets traces, costs.json, modules.json."
        ),
    ],
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Say where a training step's time goes: by module, forward and backward, and by kernel.

    Traces (*.json.gz) open in https://ui.perfetto.dev or chrome://tracing.
    """
    from scalefold.bench.profile import profile_step
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr

    profile_step(
        read_config(config, set_),
        shards,
        out,
        device=torch_device(device),
        console=log_to_stderr(),
    )


Op = Annotated[
    list[str] | None, typer.Option("--op", help="Only this op; several times for several.")
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        help="Only shapes whose setting or name holds this text, such as N=256; also several times."
    ),
]
Precision = Annotated[str, typer.Option(help="bf16 or fp32.")]


@app.command(epilog="Example: [cyan]scalefold bench kernels --op attention --shape N=256[/]")
def kernels(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSON to write.")] = Path(
        "kernels.json"
    ),
    op: Op = None,
    shape: Shape = None,
    precision: Precision = "bf16",
    compare: Annotated[
        bool, typer.Option(help="Also torch.compile, and other implementations that are installed.")
    ] = True,
    device: Device = "auto",
) -> None:
    """Check each kernel against float64, then time it beside other implementations."""
    from scalefold.bench.kernels.catalogue import all_cases
    from scalefold.bench.kernels.run import bench_kernels, require_kernels
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr

    chosen, dtype = torch_device(device), _dtype(precision)
    require_kernels(chosen)
    right = bench_kernels(
        all_cases(op or (), shape or ()),
        out,
        dtype=dtype,
        compare=compare,
        device=chosen,
        console=log_to_stderr(),
    )
    raise typer.Exit(0 if right else 1)


@app.command(
    epilog="Example: [cyan]scalefold bench sanitizer -c demo/mlperf.yaml "
    "--shards results/demo/shards -o sanitizer.json[/]"
)
def sanitizer(
    config: ConfigFiles,
    shards: ShardFolder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSON to write.")],
    tool: Annotated[
        list[str] | None, typer.Option(help="Only this tool; several times for several.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Runs beside each other.")] = 1,
    seconds: Annotated[float, typer.Option(help="The longest that a run may take.")] = 600,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Search the kernels for illegal accesses and races, with NVIDIA's compute-sanitizer."""
    from scalefold.bench.kernels.run import require_kernels
    from scalefold.bench.sanitizer import bench_sanitizer, clean
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr

    chosen = torch_device(device)
    require_kernels(chosen)
    result = bench_sanitizer(
        read_config(config, set_),
        shards,
        out,
        tools=tool or (),
        processes=processes,
        seconds=seconds,
        device=chosen,
        console=log_to_stderr(),
    )
    raise typer.Exit(0 if clean(result) else 1)


@app.command(epilog="Example: [cyan]scalefold bench tune --op norm[/]")
def tune(
    op: Op = None,
    shape: Shape = None,
    precision: Precision = "bf16",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="FOLDER",
            help="Write the tables there; default: where the kernels read them.",
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Find the fastest tiles of each kernel on this GPU, and write them into its table."""
    from scalefold.bench.kernels.catalogue import all_cases
    from scalefold.bench.kernels.run import require_kernels
    from scalefold.bench.kernels.tune import tune as tune_cases
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr

    chosen, dtype = torch_device(device), _dtype(precision)
    require_kernels(chosen)
    written = tune_cases(
        all_cases(op or (), shape or ()),
        folder=folder,
        dtype=dtype,
        device=chosen,
        console=log_to_stderr(),
    )
    for path in written:
        typer.echo(path)


def _dtype(precision: str) -> torch.dtype:
    import torch

    known = {"bf16": torch.bfloat16, "fp32": torch.float32}
    if precision not in known:
        raise InputError(f"--precision {precision}: choose one of {', '.join(known)}")
    return known[precision]


@app.command(
    epilog="Example: [cyan]scalefold bench curves -c demo/curves.yaml --shards results/demo/shards "
    "--reference training.precision=fp32 --reference training.kernels=torch "
    "--reference training.cuda_graphs=off -o curves.json[/]"
)
def curves(
    config: ConfigFiles,
    shards: ShardFolder,
    reference: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE", help="What is different in the reference, key by key."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSON to write.")],
    seeds: Annotated[int, typer.Option(min=2, help="So many: 0, 1, …")] = 3,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Compare loss curves with a reference's, several seeds each; exit code 1 beyond the spread."""
    from scalefold.bench.curves import bench_curves
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr

    result = bench_curves(
        read_config(config, set_),
        read_config(config, [*(set_ or []), *reference]),
        shards,
        out,
        seeds=range(seeds),
        device=torch_device(device),
        console=log_to_stderr(),
    )
    raise typer.Exit(0 if result["within_spread"] else 1)


@app.command(
    epilog="Example: [cyan]scalefold bench loader -c demo/mlperf.yaml --delay-every 50 "
    "--delay-seconds 6 -o loader.json[/]"
)
def loader(
    config: ConfigFiles,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="JSON to write.")],
    shards: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Shards; default: made-up ones of the next two sizes."),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Alignment rows of made-up chains.")] = 10_000,
    residues: Annotated[int, typer.Option(min=16, help="Residues of made-up chains.")] = 384,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps.")] = 100,
    step_seconds: Annotated[float, typer.Option(min=0, help="Length of a step.")] = 0.2,
    delay_every: Annotated[
        int, typer.Option(min=0, help="Delay one sample in so many; 0: none.")
    ] = 0,
    delay_seconds: Annotated[float, typer.Option(min=0, help="By so much.")] = 0.0,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Time the loader beside torch's DataLoader, with and without delayed samples."""
    import tempfile

    from scalefold.bench.loader import Delay, bench_loader
    from scalefold.bench.synthetic_shards import write_synthetic_shards
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr

    with tempfile.TemporaryDirectory() as temporary:
        if shards is None:
            shards = Path(temporary)
            write_synthetic_shards(shards, lengths=[residues] * 8, num_rows=rows, num_hits=40)
        bench_loader(
            read_config(config, set_),
            shards,
            out,
            steps=steps,
            step_seconds=step_seconds,
            delay=Delay(delay_every, delay_seconds),
            device=torch_device(device),
            console=log_to_stderr(),
        )
