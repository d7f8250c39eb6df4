"""``scalefold doctor``: which device, versions and backends run the model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalefold.cli.options import Device, read_config


def register(app: typer.Typer) -> None:
    """Add the command of this module to the application."""
    app.command(rich_help_panel="Tools", epilog="Example: [cyan]scalefold doctor[/]")(doctor)


def doctor(
    device: Device = "auto",
    warm: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="CONFIG",
            help="Also make one training step of this configuration, so that all its kernels are "
            "compiled when a training starts. May be given several times; later files win.",
        ),
    ] = None,
) -> None:
    """Show what the model runs on here: GPU, torch, Triton, and the backend of each op.

    If a preferred backend does not serve an op, the reason is printed below it.
    """
    import torch

    from scalefold import __version__
    from scalefold.cli.device import torch_device
    from scalefold.ops.backends import backends_on
    from scalefold.ops.triton import triton_version, why_not

    chosen = torch_device(device)
    name = chosen.type
    if chosen.type == "cuda":
        major, minor = torch.cuda.get_device_capability(chosen)
        name = f"{torch.cuda.get_device_name(chosen)}, compute capability {major}.{minor}"
    typer.echo(f"scalefold  {__version__}")
    typer.echo(f"torch      {torch.__version__}")
    typer.echo(f"triton     {triton_version() or 'not installed'}")
    typer.echo(f"device     {name}")
    if obstacle := why_not(chosen):
        typer.echo(f"kernels    none, plain PyTorch serves all operations: {obstacle}")
    for op, backend, passed_over in backends_on(chosen):
        typer.echo(f"{op:25} {backend}")
        for other, reason in passed_over.items():
            typer.echo(f"{'':25} not {other}: {reason}")
    if warm:
        from scalefold.bench.step import first_step
        from scalefold.cli.logs import log_to_stderr

        log_to_stderr()
        seconds = first_step(read_config(warm, None), chosen)
        typer.echo(f"caches     warm: the first step took {seconds:.0f} s")
