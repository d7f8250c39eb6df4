"""``scalefold doctor``: which device, versions and backends run the model on this machine."""

from __future__ import annotations

import typer

from scalefold.cli.options import Device


def register(app: typer.Typer) -> None:
    """Add the command of this module to the application."""
    app.command(rich_help_panel="Tools", epilog="Example: [cyan]scalefold doctor[/]")(doctor)


def doctor(device: Device = "auto") -> None:
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
