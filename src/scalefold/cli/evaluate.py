"""``scalefold evaluate``: scores of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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

app = typer.Typer()


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
        typer.Option(metavar="FOLDER", help="Also write the predicted structures, as mmCIF."),
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

    from scalefold.checkpoint.read import check_is_training
    from scalefold.cli.device import torch_device
    from scalefold.cli.logs import log_to_stderr
    from scalefold.evaluate.follow import follow as follow_training
    from scalefold.evaluate.results import chains_of_mean
    from scalefold.evaluate.run import evaluate_weights
    from scalefold.io.atomic import make_folder

    console = log_to_stderr(place)
    if follow:
        if split or structures:
            raise InputError("--follow goes without --split and --structures")
        check_is_training(weights)
        make_folder(out)
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
