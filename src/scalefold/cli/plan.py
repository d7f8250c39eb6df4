"""``scalefold plan``: time, memory and cost of training on GPUs that one does not have yet."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from scalefold.cli.options import Overrides, Stage, parse_overrides, read_stage
from scalefold.errors import InputError, counted

_PRESET: Final = "mlperf"
_GPUS: Final = (1, 8, 64, 256, 512, 1024, 2080)
_COLUMNS: Final = {
    "gpus": ("GPUs", ","), "data": ("data", ""), "dap": ("DAP", ""), "samples": ("samples", ""),
    "recomputation": ("recomputation", ""), "memory_gib": ("GiB", ".0f"),
    "step_seconds": ("step, s", ".3g"), "efficiency": ("efficiency", ".0%"),
    "gpu_hours": ("GPU hours", ",.0f"), "days": ("days", ".2g"),
    "kilowatt_hours": ("kWh", ",.0f"), "cost": ("cost", ",.0f"),
}  # fmt: skip


app = typer.Typer()


@app.command(
    rich_help_panel="Training",
    epilog="Examples: [cyan]scalefold plan --gpus 8 --kind h200 --preset mlperf[/], "
    "[cyan]scalefold plan --gpus 8 -c my.yaml[/]",
)
def plan(
    gpus: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Number of GPUs: all degrees of DAP are shown; of several numbers, the fastest. "
            "Default: 1 to the 2,080 of ScaleFold's paper.",
        ),
    ] = None,
    kind: Annotated[str, typer.Option(help="GPU to plan for: part of its name.")] = "h200",
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Preset to train with. Default: mlperf.")
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Your run's configuration, instead of --preset."
        ),
    ] = None,
    stage: Stage = None,
    fabric: Annotated[
        str,
        typer.Option(
            help="Network links of a node: [cyan]ndr[/] (8 links of 400 Gbit/s), [cyan]hdr[/] (4 "
            "of 200) or [cyan]ethernet[/] (1 of 100)."
        ),
    ] = "ndr",
    node_gpus: Annotated[int, typer.Option(min=1, help="GPUs in each node.")] = 8,
    record: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="What `scalefold bench scaling` measured on your GPUs. Several may be given.",
        ),
    ] = None,
    memory_gib: Annotated[
        float | None,
        typer.Option(
            "--memory-gib", min=1.0, help="Memory of each GPU. Needed for kinds without records."
        ),
    ] = None,
    watts: Annotated[
        float, typer.Option(min=0.0, help="Power of a GPU with its share of the node.")
    ] = 1000.0,
    price: Annotated[
        float, typer.Option(min=0.0, help="Price of a GPU for an hour, in any currency.")
    ] = 2.5,
    format_: Annotated[
        Literal["text", "json"], typer.Option("--format", help="Format of the output.")
    ] = "text",
    set_: Overrides = None,
) -> None:
    """Estimate step time, days, GPU hours, energy, cost and memory of training, by number of GPUs.

    The estimate rests on recorded steps, on exchanges counted on the code, and on assumptions that
    options change. The last column names what no record covers. Memory is the most that each GPU
    needs: training.recomputation auto keeps a reserve of 15 % and 1 GiB.
    """
    from scalefold.config import preset_config

    if config and preset is not None:
        raise InputError("give either --config, which names its preset, or --preset")
    if stage is not None and not config:
        raise InputError("--stage names a stage of a --config: give that too")
    settings = (
        read_stage(config, set_, stage)
        if config
        else preset_config(preset or _PRESET, parse_overrides(set_ or []))
    )

    from scalefold.plan.calibration import Calibration

    known = Calibration.read(record or [])
    if fabric not in known.fabrics:
        raise InputError(f"--fabric {fabric}: choose one of {', '.join(known.fabrics)}")
    gib = memory_gib or next((m for n, m in known.gpu_gib.items() if kind.lower() in n.lower()), 0)
    if not gib:
        raise InputError(
            f"--kind {kind}: records are of {' and '.join(known.gpu_gib)}, each named by a part of "
            "it, such as h200. For another kind, measure steps with scalefold bench scaling, and "
            "give --record and --memory-gib"
        )

    from scalefold.plan.rows import Planner
    from scalefold.plan.run_summary import checkpoint_bytes
    from scalefold.plan.timing import Cluster

    cluster = Cluster(kind, node_gpus, known.fabrics[fabric], gib, watts, price)
    planner = Planner(settings, cluster, known)
    rows = [planner.fastest(number) for number in gpus or _GPUS]
    if gpus and len(gpus) == 1:
        rows = list(planner.rows(gpus[0]))
    if not gpus and not config and preset in (None, _PRESET):
        rows.append(planner.published())
    training, size = settings.training, checkpoint_bytes(settings)
    content = {
        "steps": training.steps,
        "samples": training.steps * training.global_batch_size,
        "checkpoint_bytes": [size] * len(training.published_steps()),
        "assumed": asdict(cluster),
        "rows": [asdict(row) for row in rows],
        "sources": list(dict.fromkeys(step.source for step in known.steps)),
    }
    typer.echo(json.dumps(content, indent=2)) if format_ == "json" else _print(content)


def _print(content: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*(title for title, _ in _COLUMNS.values()), "extrapolated")
    for row in content["rows"]:
        cells = ("" if row[k] is None else f"{row[k]:{form}}" for k, (_, form) in _COLUMNS.items())
        table.add_row(*cells, ", ".join(row["extrapolated"]))
    console = Console()
    console.width = max(console.width, 130)
    console.print(table)
    sizes, assumed = content["checkpoint_bytes"], content["assumed"]
    typer.echo(
        f"{content['steps']:,} steps, {content['samples']:,} samples; "
        f"{counted(len(sizes), 'checkpoint')} of {sizes[0] / 1e9:.1f} GB, "
        f"{sum(sizes) / 1e9:,.1f} GB in all\n"
        f"assumed: {assumed['kind']} with {assumed['memory_gib']:.0f} GiB, "
        f"{assumed['watts']:,.0f} W and {assumed['price']:g} an hour for each GPU; "
        f"{assumed['node_gpus']} GPUs and "
        f"{assumed['node_bandwidth'] / 1e9:,.0f} GB/s of network for each node\n"
        f"from: {'; '.join(content['sources'])}"
    )
