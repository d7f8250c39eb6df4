"""``scalefold train``: from shards to weights."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalefold.cli.options import (
    ConfigFiles,
    Device,
    Overrides,
    ShardFolder,
    Stage,
    Strict,
    read_stage,
)
from scalefold.errors import InputError

if TYPE_CHECKING:
    from scalefold.config import Config
    from scalefold.train.loop import TrainingResult

app = typer.Typer()


@app.command(
    rich_help_panel="Training",
    epilog="Example: [cyan]scalefold train -c demo/config.yaml --shards results/demo/shards "
    "--out results/mine/weights/first[/]. After an interruption, add "
    "[cyan]--resume[/].",
)
def train(
    config: ConfigFiles,
    shards: ShardFolder,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="The training's folder, for step-<number>/, metrics.jsonl and tensorboard/.",
        ),
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last complete checkpoint, if any.")
    ] = False,
    set_aside: Annotated[
        bool,
        typer.Option(
            "--set-aside",
            help="With --resume: if the folder holds a training run with other data, initial "
            "weights or settings, move that run to replaced/ in the folder and start over. Without "
            "it, such a folder is an error.",
        ),
    ] = False,
    accept_new_data: Annotated[
        bool,
        typer.Option(
            "--accept-new-data",
            help="With --resume: go on though the shards are others. Checkpoints keep the hashes "
            "of all. The same as -s training.accept_new_data=true.",
        ),
    ] = False,
    strict: Strict = False,
    device: Device = "auto",
    stage: Stage = None,
    set_: Overrides = None,
) -> None:
    """Train a model, and write checkpoints.

    Several processes, one a GPU, train together when torchrun starts them: [cyan]torchrun
    --nproc-per-node 8 -m scalefold train …[/]. They share each step's samples.

    SIGTERM, SIGINT (Ctrl-C), SIGUSR1 or SIGHUP (a closed terminal) to any process stops the
    training. It finishes its step, writes a checkpoint and ends with exit code 75. The same command
    with --resume continues, also with another number of processes.

    When an evaluation of a checkpoint reaches evaluation.target_lddt, or evaluations have not risen
    for evaluation.patience of them, the training is complete: it ends in the same way with exit
    code 0. The last evaluation.ranks processes do not train: they evaluate its checkpoints.
    """
    from scalefold.config import check_initial_weights
    from scalefold.launcher import find_place
    from scalefold.shards.manifest import Manifest

    place = find_place()
    if place is None:  # of several, one says it: see on_all
        check_initial_weights(read_stage(config, set_, stage))
        Manifest.read(shards)

    from scalefold.checkpoint.read import check_is_training
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr
    from scalefold.evaluate.evaluation_ranks import evaluate_inside, evaluation_folder
    from scalefold.parallel.agreement import on_all, on_first
    from scalefold.parallel.launch import divided, joined
    from scalefold.shards.packed_settings import check_origin
    from scalefold.train.signals import EXIT_STOPPED, stop_on_signals, stop_without_parent
    from scalefold.train.start import train as run

    def settings() -> Config:
        check_is_training(out)
        if set_aside and not resume:
            raise InputError("--set-aside only goes with --resume")
        accepted = ["training.accept_new_data=true"] if accept_new_data else []
        read = read_stage(config, [*(set_ or []), *accepted], stage)
        if read.evaluation.ranks:
            evaluation_folder(out)
        return read

    console = log_to_stderr(place)
    choose = partial(torch_device, device, place)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals())
        if place is not None:
            stack.enter_context(stop_without_parent(stop))
        everybody, chosen = stack.enter_context(joined(place, choose))
        loaded = on_all(everybody.world, settings)
        evaluators = loaded.evaluation.ranks
        mesh = divided(
            everybody,
            loaded.parallel.dap,
            place,
            loaded.training.global_batch_size,
            loaded.parallel.exchange,
            evaluators,
        )
        number = everybody.world.rank - (everybody.world.size - evaluators)
        if number >= 0:
            left = everybody.world.first_at_barrier
            evaluate_inside(loaded, out, shards, chosen, stop, number, left)
            everybody.world.barrier_without_timeout()
            return
        if strict:
            on_first(mesh.world, lambda: check_origin(shards, loaded))
        result = run(
            loaded,
            shards,
            out,
            resume=resume,
            set_aside=set_aside,
            device=chosen,
            stop=stop,
            mesh=mesh,
            console=console,
        )
        if evaluators:
            everybody.world.barrier_without_timeout()
    if mesh.first:
        _say(result, loaded.training.steps, stop.reason, resume)
    if not result.completed:
        raise typer.Exit(EXIT_STOPPED)


def _say(result: TrainingResult, steps: int, reason: str, resume: bool) -> None:
    wanted = f" of {steps}" if result.step <= steps else f", training.steps is only {steps}"
    typer.echo(f"{result.checkpoint}: step {result.step}{wanted}")
    if result.end is not None:
        typer.echo(str(result.end))
    if result.skipped_steps:
        typer.echo(f"{result.skipped_steps} steps were not finite and not applied", err=True)
    if not result.completed:
        again = "" if resume else " with --resume"
        typer.echo(f"stopped by {reason}; the same command{again} continues", err=True)
