"""``scalefold predict``: from sequences to structures."""

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalefold.cli.options import (
    EXIT_INPUT_ERROR,
    Device,
    Overrides,
    check_there,
    parse_overrides,
    parse_part,
)
from scalefold.cli.sharing import leading
from scalefold.errors import InputError, counted, first_few

if TYPE_CHECKING:
    from scalefold.config import Config
    from scalefold.predict.run import Outcome
    from scalefold.predict.targets import Target
    from scalefold.raw.fasta import FastaRecord

logger = logging.getLogger(__name__)
app = typer.Typer()


@app.command(
    rich_help_panel="Prediction",
    epilog="Examples: [cyan]scalefold predict proteins.fasta --alignments alignments "
    "--weights results/mine/weights/first/step-00001000 --out predictions[/]. With several "
    "models of AlphaFold: [cyan]scalefold predict proteins.fasta --query-alone "
    "-w params_model_1_ptm.npz -w params_model_2_ptm.npz --out predictions[/]",
)
def predict(
    fasta: Annotated[
        Path | None, typer.Argument(help="FASTA file of sequences. Leave it out with --shards.")
    ] = None,
    *,
    weights: Annotated[
        list[Path],
        typer.Option(
            "--weights",
            "-w",
            metavar="PATH",
            help="A checkpoint folder, or a file of weights of ScaleFold, OpenFold or AlphaFold "
            "(.npz). Of several, each predicts, and the predictions are ranked.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Gets a folder for each sequence, predictions.tsv and a page, predictions.html.",
        ),
    ],
    alignments: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder with <name>/a3m/*.a3m for each sequence, as `scalefold search` and "
            "`scalefold fetch` write it, or with <name>/*.a3m, or with pdb/<name>/a3m/*.a3m.",
        ),
    ] = None,
    query_alone: Annotated[
        bool,
        typer.Option(
            "--query-alone",
            help="Predict from the sequences without alignments: far less accurate.",
        ),
    ] = False,
    shards: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Predict packed chains instead of a FASTA file."),
    ] = None,
    chain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="With --shards: a chain to predict. May be given several times. Default: all.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Preset of weights that do not say which model they are of. Checkpoints do, and "
            "params_model_1.npz to params_model_5_ptm.npz do by their names.",
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="A run's configuration, instead of --preset."
        ),
    ] = None,
    recycling: Annotated[
        int | None,
        typer.Option(
            min=0, help="Passes before the last. Default: the weights' evaluation.recycling."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER/PARTS",
            help="Only one part of the sequences, such as 0/8. Sequences that cannot be predicted "
            "are then no error: predictions.tsv lists them.",
        ),
    ] = None,
    early_stop: Annotated[
        float,
        typer.Option(
            metavar="Å",
            min=0.0,
            help="End recycling when distances between Cα atoms change by less than this; 0.5 "
            "suits most. Default: make all passes.",
        ),
    ] = 0.0,
    device: Device = "auto",
    set_: Overrides = None,
) -> None:
    """Predict structures: ModelCIF and PDB files with confidences, ranked.

    A checkpoint is used with its averaged weights and its own configuration.

    Several processes that torchrun starts on a node share each target: [cyan]torchrun --standalone
    --nproc-per-node 4 -m scalefold predict …[/]. So each needs less memory.

    The same command goes on where it was interrupted. A sequence that cannot be predicted is named
    in a line of its own and in predictions.tsv, the rest goes on, and the exit code is 2.
    """
    _check_source(fasta, shards, alignments, query_alone, chain, part)
    if preset and config:
        raise InputError("give either --preset NAME or --config FILE (-c), not both")
    for path, what in (
        (fasta, "FASTA file"),
        (alignments, "folder of alignments"),
        (shards, "shard folder"),
        (weights[0] if len(weights) == 1 else None, "checkpoint folder or weight file"),
    ):
        if path is not None:
            check_there(path, what)
    if alignments is not None and not alignments.is_dir():
        raise InputError(
            f"--alignments {alignments}: is no folder. Name one that has a folder for each name"
        )
    overrides = _overrides(set_, recycling)
    given = _given(preset, config, overrides)
    number, parts = (0, 1) if part is None else parse_part(part)

    from scalefold.cli.logs import log_to_stderr
    from scalefold.launcher import find_place

    console = log_to_stderr(find_place())
    logger.info("loading PyTorch, and weights: %s", first_few(weights))

    from scalefold.predict.members import read_members
    from scalefold.predict.run import SUMMARY_FILE, predict_targets
    from scalefold.predict.targets import fasta_targets

    bad_weights: list[Path] = []

    def refuse(path: Path, reason: str) -> None:
        bad_weights.append(path)
        typer.echo(f"weights left out: {reason}", err=True)

    with leading(device) as predictors:
        if predictors is None:
            return
        if fasta is not None:  # before weights, which take longer
            records, refused = _of_fasta(fasta, number, parts)
        members = read_members(weights, given, overrides, refuse)
        for member in members:
            kind = "averaged weights" if member.averaged else "weights as they are in the file"
            typer.echo(f"{member.label}: {kind}, {member.loaded.path}", err=True)
        if shards is not None:
            targets, refused = _of_shards(shards, chain)
        else:
            targets = fasta_targets(records, alignments, members[0].config.shards)
        if not targets and part is None:
            raise InputError(f"{fasta or shards}: nothing in it can be predicted, as said above")
        outcomes = predict_targets(
            targets,
            members,
            out,
            predictors.device,
            tolerance_angstrom=early_stop,
            refused=refused,
            others=part is None,
            console=console,
            predictors=predictors,
        )
    if part is None:  # a part is one of many jobs, and drawing would hold its GPU for a minute
        from scalefold.report.predictions import PAGE_FILE, write_predictions

        shown = write_predictions(out, outcomes, shlex.join(sys.argv))
        typer.echo(f"{out / PAGE_FILE}: shows {counted(shown, 'structure')}", err=True)
    failed = sum(outcome.fate == "failed" for outcome in outcomes)
    there = sum(outcome.fate == "there" for outcome in outcomes)
    before = f", {there} of them before" if there else ""
    done = len(outcomes) - failed
    typer.echo(f"{out / SUMMARY_FILE}: {done} of {len(outcomes)} predicted{before}")
    if (failed and part is None) or bad_weights:
        raise typer.Exit(EXIT_INPUT_ERROR)


def _check_source(
    fasta: Path | None,
    shards: Path | None,
    alignments: Path | None,
    query_alone: bool,
    chain: list[str] | None,
    part: str | None,
) -> None:
    """Refuse options that do not go with the source of the chains."""
    if (fasta is None) == (shards is None):
        raise InputError("give either a FASTA file, or --shards with chains that were packed")
    if fasta is not None and (alignments is None) != query_alone:
        raise InputError(
            "say where the alignments of the sequences are (--alignments FOLDER), or that there "
            "are none (--query-alone)"
        )
    if fasta is None and (alignments or query_alone):
        raise InputError("--shards have alignments: leave out --alignments and --query-alone")
    if fasta is not None and chain:
        raise InputError("--chain only goes with --shards")
    if fasta is None and part:
        raise InputError("--part only goes with a FASTA file")


def _overrides(set_: list[str] | None, recycling: int | None) -> dict[str, Any]:
    from scalefold.config.load import merge

    tree = parse_overrides(set_ or [])
    return tree if recycling is None else merge(tree, {"evaluation": {"recycling": recycling}})


def _given(
    preset: str | None, config: list[Path] | None, overrides: dict[str, Any]
) -> Config | None:
    """Return the configuration that the options name."""
    from scalefold.config import load_config, preset_config

    if preset is not None:
        return preset_config(preset, overrides)
    return None if config is None else load_config(config, overrides)


def _of_fasta(fasta: Path, number: int, parts: int) -> tuple[list[FastaRecord], list[Outcome]]:
    """Read one part of the sequences; what cannot be read is in the first."""
    from scalefold.predict.run import Outcome
    from scalefold.raw.fasta import part_of, read_fasta

    records, rejected = read_fasta(fasta)
    refused = []
    for line, name, reason in rejected if number == 0 else ():
        typer.echo(f"{fasta}, line {line}: {name}: {reason}", err=True)
        refused.append(Outcome(name, None, "failed", f"line {line}: {reason}"))
    return [record for record in records if part_of(record, parts) == number], refused


def _of_shards(shards: Path, chosen: list[str] | None) -> tuple[list[Target], list[Outcome]]:
    from scalefold.predict.run import Outcome
    from scalefold.predict.targets import shard_targets
    from scalefold.shards.reader import ShardReader

    reader = ShardReader(shards)
    keys = chosen or [key for split in ("train", "validation") for key in reader.keys(split)]
    targets: list[Target] = []
    refused: list[Outcome] = []
    for key in dict.fromkeys(keys):
        try:
            targets += shard_targets(reader, [key])
        except InputError as error:
            typer.echo(str(error), err=True)
            refused.append(Outcome(key, None, "failed", str(error)))
    return targets, refused
