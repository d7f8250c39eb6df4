"""``scalefold doctor``: what training needs of this machine, and what runs the model on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalefold.cli.options import EXIT_INPUT_ERROR, Device, read_config

if TYPE_CHECKING:
    from scalefold.config import Config
    from scalefold.doctor import Finding


app = typer.Typer()


@app.command(
    rich_help_panel="Tools",
    epilog="Example: [cyan]scalefold doctor --results results --shards results/my/shards[/]",
)
def doctor(
    device: Device = "auto",
    results: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Where results go: writing and locking are tried."),
    ] = Path("results"),
    shards: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Shards to train on: some chains are read."),
    ] = None,
    warm: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="CONFIG",
            help="Also make one training step of this configuration, so that all its kernels are "
            "compiled when training starts. May be given several times; later files win.",
        ),
    ] = None,
) -> None:
    """Show what the model runs on here, and try what training needs: GPUs, links, folders.

    GPU, torch, Triton and the backend of each op come first. If a preferred backend does not serve
    an op, the reason is printed below it. The last line is a verdict. The exit code is 2 if
    something must be fixed.
    """
    settings = read_config(warm, None) if warm else None
    _show_backends(device)
    if settings is not None:
        _fill_caches(device, settings)
    from scalefold.doctor import verdict

    findings = []
    for finding in _findings(device, results, shards):
        typer.echo(finding)
        findings.append(finding)
    typer.echo(verdict(findings))
    if any(finding.wrong for finding in findings):
        raise typer.Exit(EXIT_INPUT_ERROR)


def _findings(device: str, results: Path, shards: Path | None) -> Iterator[Finding]:
    from scalefold.cli.device import torch_device
    from scalefold.doctor import Finding
    from scalefold.doctor.folders import of_caches, of_results, of_shards
    from scalefold.ops.kernels import why_not

    if device != "cpu":
        from scalefold.doctor.gpus import of_gpus

        yield from of_gpus()
    yield from of_results(results)
    if shards is not None:
        yield of_shards(shards)
    if why_not(torch_device(device)) is None:
        yield from of_caches()
    else:
        yield Finding("caches", "not used: plain PyTorch compiles no kernels")


def _show_backends(device: str) -> None:
    import torch

    from scalefold import __version__
    from scalefold.cli.device import torch_device
    from scalefold.ops.backends import backends_on
    from scalefold.ops.kernels import triton_version, why_not

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


def _fill_caches(device: str, config: Config) -> None:
    from scalefold.bench.step import first_step
    from scalefold.cli.device import measured_device
    from scalefold.cli.logs import log_to_stderr

    log_to_stderr()
    seconds = first_step(config, measured_device(device))
    typer.echo(f"first step {seconds:.0f} s; what it compiled is in the caches")
