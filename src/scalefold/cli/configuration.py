"""``scalefold config``: show and check configurations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scalefold.cli.options import (
    ConfigFiles,
    Overrides,
    Stage,
    check_there,
    parse_overrides,
    read_config,
    read_stage,
)

if TYPE_CHECKING:
    from scalefold.config import Config
    from scalefold.config.search import SearchConfig
    from scalefold.raw.chains import ChainRow

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Show, check and describe configurations."
)


@app.command(
    epilog="Example: [cyan]scalefold config show -c demo/config.yaml -s training.steps=20[/]"
)
def show(config: ConfigFiles, set_: Overrides = None, stage: Stage = None) -> None:
    """Print the complete configuration: defaults, preset, files and overrides resolved.

    --stage prints the configuration of one training run.
    """
    from scalefold.config import config_to_yaml

    loaded = read_stage(config, set_, stage) if stage else read_config(config, set_)
    typer.echo(config_to_yaml(loaded), nl=False)


@app.command(epilog="Example: [cyan]scalefold config check -c demo/config.yaml[/]")
def check(
    config: ConfigFiles,
    set_: Overrides = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that a node will have: parallel.dap must divide them."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes, with --processes on each.")] = 1,
) -> None:
    """Check a configuration: say which key is wrong and how to fix it, or summarise the run.

    The list of chains must have chains to train on, and the mirrors must have the files of at least
    one of them. Each kind of file must be there for some listed chain: structures, each of
    data.alignments, template hits. With a section search, only structures, programs and databases
    must be there. The initial weights must fit the model, and the model must have the modules that
    training.trainable names. The run's folder must be writable. An image file, the sequences of
    predict.fasta and distillation.fasta, and the files of section report must exist.

    A training run that the workflow would start over is named.

    With predict.weights, these, the sequences, and what a search needs must exist.
    """
    from scalefold.config import load_stages, run_key
    from scalefold.launcher import check_layout, training_processes
    from scalefold.plan.run_summary import run_summary

    stages = load_stages(config, parse_overrides(set_ or []))
    loaded = next(iter(stages.values()))
    if processes is not None:
        for one in stages.values():
            batch_size = one.training.global_batch_size
            size, on_node = training_processes(nodes * processes, processes, one.evaluation.ranks)
            check_layout(one.parallel.dap, size, on_node, batch_size)
    if loaded.predict.weights:
        _check_prediction(loaded)
        return
    chains = _checked_chains(loaded)
    _check_configured_files(stages.values())
    _check_raw_files(loaded, chains)
    _check_machine(loaded)
    _check_weights(stages.values())
    _warn_of_restarts(stages)
    for name, one in stages.items():
        about = f"stage {name}" if name else f"run {one.run_name}"
        typer.echo(f"valid: {about}, preset {one.preset}, key {run_key(one)}")
    for line in run_summary(stages, chains):
        typer.echo(line)


def _checked_chains(config: Config) -> list[ChainRow]:
    """Read the list of chains; warn of clusters in both splits."""
    from scalefold.raw.chains import check_trainable, leaking_clusters, read_chains, with_splits

    chains = with_splits(read_chains(config.data.chains), config.data)
    check_trainable(chains, config.data.splits or config.data.chains)
    if leaking := leaking_clusters(chains):
        typer.echo(
            f"warning: {config.data.chains}: {len(leaking):,} clusters have chains of both train "
            f"and validation, {leaking[0]} for one, so validation scores are too good. Give each "
            "cluster one split, as scalefold chains does",
            err=True,
        )
    return chains


def _check_configured_files(stages: Collection[Config]) -> None:
    """Check that files exist which the configuration names for other steps than training."""
    first = next(iter(stages))
    _check_sequences(first)
    if first.distillation.fasta is not None:
        check_there(first.distillation.fasta, "FASTA file")
    for path in (path for one in stages for path in one.report.against):
        check_there(path, "evaluation, which report.against names")
    for one in stages:
        if one.report.beside is not None:
            check_there(one.report.beside, "report of a run, which report.beside names")


def _check_raw_files(config: Config, chains: Sequence[ChainRow]) -> None:
    """Check that mirrors have the chains' files, or that they can be searched."""
    from scalefold.fetch.on_mirrors import can_be_evaluated, check_files, check_mirrors

    only: Literal["structures"] | None = None if config.search is None else "structures"
    check_files(chains, config.data, only)
    if config.search is not None:
        check_mirrors(config.data, "alignments")  # what they do not have is searched
        _check_search(config.search)
    splits = config.evaluation.splits
    if not can_be_evaluated(chains, config.data, splits, only):
        typer.echo(
            f"warning: {config.data.chains}: no chain of {' or '.join(splits)} has its files, so "
            "no checkpoint can be evaluated, and the workflow ends without a report. Bring the "
            "files of such a chain, list others, or set evaluation.splits",
            err=True,
        )


def _check_search(search: SearchConfig) -> None:
    from scalefold.search.steps import check_step

    for step in search.steps:
        check_step(step)


def _check_machine(config: Config) -> None:
    from scalefold.config import check_image
    from scalefold.io.atomic import check_writable

    check_writable(config.results / config.run_name, "results")
    check_image(config)


def _check_weights(stages: Collection[Config]) -> None:
    """Check that initial weights fit the model, and that it has the modules to train."""
    from scalefold.config import check_initial_weights

    first = next(iter(stages))
    check_initial_weights(first)
    if first.training.initial_weights is not None:
        from scalefold.checkpoint.initial_weights import read_initial_weights

        read_initial_weights(first)
    for one in stages:
        if one.training.trainable is not None:
            from scalefold.optim.trainable import trained_names
            from scalefold.weights.matching import model_shapes

            trained_names(model_shapes(one.model), one.training.trainable)


def _warn_of_restarts(stages: Mapping[str, Config]) -> None:
    """Warn of training runs that the workflow would start over, or begin beside others."""
    from scalefold.config import run_key
    from scalefold.config.stages import teachers
    from scalefold.train.restart_warnings import restart_warnings

    taught_by, keys = teachers(stages), {run_key(one) for one in stages.values()}
    for name, one in stages.items():
        run = shards = one.results / one.run_name
        if name in taught_by:
            teacher = taught_by[name]
            shards /= f"distilled/{'given' if teacher is None else run_key(stages[teacher])}"
        training, evaluations = (run / part / run_key(one) for part in ("weights", "evaluation"))
        for warning in restart_warnings(training, shards / "shards", evaluations, one):
            typer.echo(f"warning: {warning}", err=True)
        others = {path.parent.name for path in training.parent.glob("*/step-*.ready")} - keys
        if others and not training.exists():
            typer.echo(
                f"warning: settings differ from those of {', '.join(sorted(others))} in "
                f"{training.parent}: a new training run, {training.name}, starts beside them",
                err=True,
            )


def _check_sequences(config: Config) -> None:
    from scalefold.relax import check_openmm

    if config.predict.fasta is not None:
        check_there(config.predict.fasta, "FASTA file")
        if config.predict.relax:
            check_openmm()


def _check_prediction(config: Config) -> None:
    """Check a run that only predicts."""
    _check_sequences(config)
    for path in config.predict.weights:
        check_there(path, "weights, which predict.weights names")
    if config.predict.searches and config.search is not None:
        _check_search(config.search)
    _check_machine(config)
    typer.echo(f"valid: run {config.run_name} predicts, with given weights, and trains nothing")


@app.command(epilog="Example: [cyan]scalefold config key -c demo/config.yaml[/]")
def key(config: ConfigFiles, set_: Overrides = None) -> None:
    """Print the key of a training run: the name of its folder below weights/.

    The key changes with every setting that the trained weights depend on, except the number of
    steps. With several stages, each has a line with its key and its name.
    """
    from scalefold.config import load_stages, run_key

    for name, one in load_stages(config, parse_overrides(set_ or [])).items():
        typer.echo(f"{run_key(one)} {name}".rstrip())


@app.command(epilog="Example: [cyan]scalefold config schema -o config.schema.json[/]")
def schema(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it here.")
    ] = None,
) -> None:
    """Print the JSON schema of configuration files, for editors."""
    from scalefold.config import json_schema

    if out is None:
        typer.echo(json_schema(), nl=False)
    else:
        from scalefold.io.atomic import write_bytes

        write_bytes(out, json_schema().encode())


@app.command()
def presets() -> None:
    """List the values that [cyan]preset:[/] can have, and what each is for."""
    from scalefold.config import preset_descriptions

    for name, about in preset_descriptions().items():
        typer.echo(f"{name:<18}{about}")
