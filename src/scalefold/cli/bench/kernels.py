"""``scalefold bench kernels``, ``table``, ``sanitizer``, ``tune``: GPU kernels, one by one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalefold.cli.options import ConfigFiles, Device, JsonFile, Overrides, ShardFolder, read_config
from scalefold.errors import InputError

if TYPE_CHECKING:
    import torch

    from scalefold.bench.kernels.case import KernelCase

Op = Annotated[
    list[str] | None,
    typer.Option(
        "--op",
        help="Only this op; several times for several. An unknown one is answered by all names.",
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        help="Only shapes whose setting or name holds this text, such as N=256; also several times."
    ),
]
Precision = Annotated[str, typer.Option(help="bf16 or fp32.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    app.command(epilog="Example: [cyan]scalefold bench kernels --op attention --shape N=256[/]")(
        kernels
    )
    app.command(epilog="Example: [cyan]scalefold bench table kernels.json --shape N=256[/]")(table)
    app.command(
        epilog="Example: [cyan]scalefold bench sanitizer -c demo/mlperf.yaml "
        "--shards results/demo/shards -o sanitizer.json[/]"
    )(sanitizer)
    app.command(epilog="Example: [cyan]scalefold bench tune --op norm[/]")(tune)


def kernels(
    out: JsonFile = Path("kernels.json"),
    op: Op = None,
    shape: Shape = None,
    precision: Precision = "bf16",
    compare: Annotated[
        bool, typer.Option(help="Also torch.compile, and other implementations that are installed.")
    ] = True,
    device: Device = "auto",
) -> None:
    """Check each kernel against float64, then time it beside other implementations."""
    from scalefold.bench.kernels.run import bench_kernels
    from scalefold.cli.logs import log_to_stderr

    cases, dtype, gpu = _cases(op, shape, device), _dtype(precision), _gpu(device)
    right = bench_kernels(
        cases,
        out,
        dtype=dtype,
        compare=compare,
        device=gpu,
        console=log_to_stderr(),
    )
    raise typer.Exit(0 if right else 1)


def table(
    record: Annotated[
        list[Path],
        typer.Argument(exists=True, dir_okay=False, metavar="FILE...", help="Of bench kernels."),
    ],
    shape: Shape = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(help="Only this implementation beside ScaleFold; several times for several."),
    ] = None,
    in_cache: Annotated[
        bool, typer.Option("--in-cache", help="Times with inputs in the GPU's cache.")
    ] = False,
) -> None:
    """Print records of bench kernels as one table in Markdown."""
    from scalefold.bench.kernels.markdown import markdown_table
    from scalefold.bench.record import read_record

    records = [read_record(file, "kernels") for file in record]
    typer.echo(markdown_table(records, shape or (), beside=beside or (), in_cache=in_cache))


def sanitizer(
    config: ConfigFiles,
    shards: ShardFolder,
    out: JsonFile,
    tool: Annotated[
        list[str] | None, typer.Option(help="Only this tool; several times for several.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Runs beside each other.")] = 1,
    seconds: Annotated[float, typer.Option(help="The longest that a run may take.")] = 600,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Search the kernels for illegal accesses and races, with NVIDIA's compute-sanitizer."""
    from scalefold.bench.sanitizer import bench_sanitizer, clean
    from scalefold.cli.logs import log_to_stderr

    gpu = _gpu(device)
    result = bench_sanitizer(
        read_config(config, set_),
        shards,
        out,
        tools=tool or (),
        processes=processes,
        seconds=seconds,
        device=gpu,
        console=log_to_stderr(),
    )
    raise typer.Exit(0 if clean(result) else 1)


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
    from scalefold.bench.kernels.tune import tune as tune_cases
    from scalefold.cli.logs import log_to_stderr

    cases, dtype, gpu = _cases(op, shape, device), _dtype(precision), _gpu(device)
    written = tune_cases(
        cases,
        folder=folder,
        dtype=dtype,
        device=gpu,
        console=log_to_stderr(),
    )
    for path in written:
        typer.echo(path)


def _cases(op: list[str] | None, shape: list[str] | None, device: str) -> list[KernelCase]:
    """The cases of the options.

    Triton tells a wrong name also where there is no GPU. Without both it is the GPU that is said to
    be missing: without one Triton would not help.
    """
    from scalefold.bench.kernels.catalogue import all_cases

    if find_spec("triton") is None:
        _gpu(device)
    return all_cases(op or (), shape or ())


def _gpu(device: str) -> torch.device:
    """The device of the option, if the kernels run on it."""
    from scalefold.bench.kernels.run import require_kernels
    from scalefold.cli.device import torch_device

    chosen = torch_device(device)
    require_kernels(chosen)
    return chosen


def _dtype(precision: str) -> torch.dtype:
    import torch

    known = {"bf16": torch.bfloat16, "fp32": torch.float32}
    if precision not in known:
        raise InputError(f"--precision {precision}: choose one of {', '.join(known)}")
    return known[precision]
