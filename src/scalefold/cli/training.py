"""``scalefold train``, ``evaluate``, ``report``: from shards to weights and their scores."""

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
    check_there,
    read_stage,
)
from scalefold.cli.sharing import leading
from scalefold.errors import InputError, counted

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
        bool,
        typer.Option("--resume", help="Continue from the last complete checkpoint, if any."),
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

    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr
    from scalefold.evaluate.inside import evaluate_inside, evaluation_folder
    from scalefold.parallel.agreement import on_all, on_first
    from scalefold.parallel.launch import divided, joined
    from scalefold.shards.packed_settings import check_origin
    from scalefold.train.signals import EXIT_STOPPED, stop_on_signals, stop_without_parent
    from scalefold.train.start import train as run

    def settings() -> Config:
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


@app.command(
    rich_help_panel="Training",
    epilog="Example: [cyan]scalefold evaluate results/mine/weights/first/step-00001000 "
    "-c demo/config.yaml --shards results/demo/shards "
    "--out results/mine/evaluation/first/step-00001000.json[/]. Of a file of weights: "
    "[cyan]scalefold evaluate model_1.pt -c my.yaml --shards results/my/shards "
    "--out model_1.json[/]",
)
def evaluate(
    weights: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint folder, step-<number>, or a file of weights of ScaleFold, OpenFold "
            "or AlphaFold (.npz). With --follow, a training run's folder."
        ),
    ],
    config: ConfigFiles,
    shards: ShardFolder,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="JSON to write, with a table beside it. With --follow, a folder.",
        ),
    ],
    split: Annotated[
        list[str] | None,
        typer.Option(help="Default: evaluation.splits. May be given several times."),
    ] = None,
    structures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Also write the predicted structures, as mmCIF.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Evaluate each checkpoint of a training run as soon as it is complete. End when "
            "training has ended, or gives no sign of life for two minutes.",
        ),
    ] = False,
    strict: Strict = False,
    device: Device = "auto",
    stage: Stage = None,
    set_: Overrides = None,
) -> None:
    """Predict whole chains, and compare them with the experiment.

    A checkpoint's averaged weights are evaluated, or those of a file. The configuration's model
    must be that of the weights. Several processes that torchrun starts on a node share each chain.

    If the mean lDDT-Cα of the first of evaluation.splits reaches evaluation.target_lddt, or has not
    risen for evaluation.patience evaluations in the folder of --out, the checkpoint's training
    ends.
    """
    from scalefold.launcher import find_place
    from scalefold.shards.manifest import Manifest
    from scalefold.shards.packed_settings import check_origin

    place = find_place()
    if follow and place is not None and place.world_size > 1:
        raise InputError(
            f"--follow: a launcher has started {place.world_size} processes, and each would write "
            "the same files: start one process, without torchrun"
        )
    if not follow:
        check_there(weights, "checkpoint folder or weight file")
    loaded = read_stage(config, set_, stage)
    Manifest.read(shards)
    if strict:
        check_origin(shards, loaded)

    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr
    from scalefold.evaluate import evaluate_weights
    from scalefold.evaluate.follow import follow as follow_training
    from scalefold.evaluate.results import chains_of_mean

    console = log_to_stderr(place)
    if follow:
        if split or structures:
            raise InputError("--follow goes without --split and --structures")
        chosen = torch_device(device)
        steps = follow_training(loaded, weights, shards, out, chosen, console)
        typer.echo(f"{out}: evaluated {counted(len(steps), 'checkpoint')} of {weights}")
        return
    with leading(device) as predictors:
        if predictors is None:
            return
        result = evaluate_weights(
            loaded, weights, shards, out, split, predictors.device, structures=structures,
            console=console, predictors=predictors,
        )  # fmt: skip
    subject = result["checkpoint"] if result["weights"] == "file" else f"step {result['step']}"
    for name, means in result["mean"].items():
        shown = [f"{metric} {value:.3f}" for metric, value in means.items() if value is not None]
        over = chains_of_mean(result, name)
        typer.echo(f"{subject}, {name}: {', '.join(shown)} over {over}")
    if result["failed"]:
        typer.echo(
            f"warning: chains failed ({len(result['failed'])}) and are not in the means; {out} "
            "says why",
            err=True,
        )


RunFolder = Annotated[Path, typer.Argument(help="The run's folder.")]
Key = Annotated[
    str | None,
    typer.Option(
        help="Which training, if the run has several: its key, as `scalefold config key` prints it."
    ),
]
RunShards = Annotated[
    Path | None,
    typer.Option("--shards", metavar="FOLDER", help="Default: shards/ in the run's folder."),
]
Beside = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The report.json of another run, to show its training beside this one's.",
    ),
]


@app.command(
    rich_help_panel="Training",
    epilog="Examples: [cyan]scalefold report results/demo[/], "
    "[cyan]scalefold report results/mine --shards results/demo/shards[/]",
)
def report(
    run: RunFolder,
    key: Key = None,
    shards: RunShards = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="HTML to write, with JSON beside it. Default: report.html in the run's folder.",
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Refuse evaluations that were made with other settings than this configuration's, "
            "and show what its section report names.",
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="An evaluation of other weights, as evaluate --out writes it, to compare with the "
            "last one chain by chain. May be given several times.",
        ),
    ] = None,
    beside: Beside = None,
    stage: Stage = None,
    set_: Overrides = None,
) -> None:
    """Write a run's report.html, which opens offline, and report.json.

    This works at any time, also while training goes on. The report names what is missing.

    The run's folder holds weights/<key>/ from train --out, evaluation/<key>/step-<number>.json from
    evaluate --out, and shards/. <key> is any name, the same in both. A file of weights has an
    evaluation only; if there are several, --key names one.
    """
    check_there(run, "run folder")

    from scalefold.report import write_report

    html = run / "report.html" if out is None else out
    loaded = read_stage(config, set_, stage) if config else None
    settings = loaded.evaluation if loaded else None
    compared = [*(loaded.report.against if loaded else ()), *(against or ())]
    beside = beside or (loaded.report.beside if loaded else None)
    json = html.with_suffix(".json")
    content = write_report(run, key, shards, html, json, settings, compared, beside)
    for note in content["notes"]:
        typer.echo(f"note: {note}", err=True)
    for finding in content["findings"]:
        typer.echo(f"stands out: {finding}", err=True)
    for split, scores in content["summary"]["lddt_ca"].items():
        if last := scores["last"]:
            said = f"mean lDDT-Cα {last['value']:.3f} over {last['over']}"
            typer.echo(f"step {last['step']}, {split}: {said}")
            # The last may be the best, and the first: each step once.
            others = {scores[name]["step"]: name for name in ("first", "best")}
            others.pop(last["step"], None)
            for step, name in sorted(others.items(), reverse=True):
                point = scores[name]
                typer.echo(f"  {name} {point['value']:.3f} over {point['chains']} at step {step}")
    typer.echo(f"{html}, {json}")
