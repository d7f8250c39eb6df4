"""``scalefold finetune``: from a folder of structures and given weights to better ones."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from scalefold.cli.options import EXIT_INPUT_ERROR, Overrides, check_there, parse_overrides
from scalefold.errors import InputError

app = typer.Typer()


@app.command(
    rich_help_panel="Training",
    epilog="Examples: [cyan]scalefold finetune my_structures --weights params_model_1.npz "
    "--alignments my_alignments --out results/my[/], the same with [cyan]--profile slurm[/], "
    "or with [cyan]-- --dry-run[/]",
)
def finetune(
    structures: Annotated[
        Path,
        typer.Argument(help="Folder of mmCIF or PDB files, plain or gzipped.", show_default=False),
    ],
    weights: Annotated[
        Path,
        typer.Option(
            "--weights",
            "-w",
            metavar="PATH",
            help="AlphaFold's or OpenFold's file, or a checkpoint folder step-<number>.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FOLDER", help="The run's folder, such as results/my."),
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- SNAKEMAKE OPTIONS]",
            help="Options for snakemake, after --.",
            show_default=False,
        ),
    ] = None,
    alignments: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Alignments: <chain>/a3m/<name>.a3m, <chain>/<name>.a3m, or OpenProteinSet's.",
        ),
    ] = None,
    query_alone: Annotated[
        bool,
        typer.Option(
            "--query-alone", help="Use chains without an alignment by their sequence alone."
        ),
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Preset of the weights' model, such as model_3_ptm. Default: found out from the "
            "file.",
        ),
    ] = None,
    validation: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=0,
            help="Number of chains to hold out, each from another cluster; 0 holds none out. "
            "Default: a tenth of the clusters, 200 at most.",
        ),
    ] = None,
    clusters: Annotated[
        str,
        typer.Option(
            metavar="FILE|mmseqs|none",
            help="[cyan]mmseqs[/] computes clusters at 40 % identity by MMseqs2. A file: RCSB's "
            "clusters by entity. [cyan]none[/]: only equal sequences are kept together.",
        ),
    ] = "mmseqs",
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="Snakemake's profile: local, slurm.")
    ] = "local",
    prepare_only: Annotated[
        bool,
        typer.Option(
            "--prepare-only", help="Write the list of chains and the configuration, and stop."
        ),
    ] = False,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew",
            help="Read the structures again, and overwrite the list of chains and the "
            "configuration.",
        ),
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Processes that read structures.")
    ] = 1,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Further settings (YAML), over those of the preset finetune-own.",
        ),
    ] = None,
    set_: Overrides = None,
) -> None:
    """Train given weights further on structures of your own.

    Structures are listed and clustered, and some clusters are held out. A configuration,
    finetune.yaml, is written to the run's folder, and one run of the workflow packs, evaluates the
    given weights, trains, evaluates and reports. You may edit finetune.yaml: the same command then
    goes on with it, as it does after an interruption.

    Structures that cannot be used are named, and listed in rejected.tsv. The rest goes on, and the
    exit code is then 2.
    """
    if not Path("Snakefile").is_file():
        raise InputError(
            "there is no Snakefile here: run the command from the root of ScaleFold's repository, "
            "where the workflow is"
        )
    if anew or not out.exists():  # else the run knows what it was made from
        check_there(structures, "folder of structures")
        check_there(weights, "weight file or checkpoint folder")

    from scalefold.config import load_config
    from scalefold.config.load import merge, read_files
    from scalefold.finetune.outcome import outcome
    from scalefold.finetune.prepare import prepare
    from scalefold.finetune.request import Request
    from scalefold.finetune.settings import evaluates_beside, snakemake_command
    from scalefold.plan.run_summary import run_summary
    from scalefold.raw.chains import check_trainable, read_chains

    overrides = merge(read_files(config or [], {})[0], parse_overrides(set_ or []))
    request = Request(
        structures, weights, out, alignments, query_alone, preset, validation, clusters, overrides
    )
    prepared = prepare(request, anew=anew, jobs=jobs)
    loaded = load_config([request.settings])
    chains = read_chains(loaded.data.chains)
    check_trainable(chains, loaded.data.chains)
    for one in prepared.unusable:
        typer.echo(f"set aside: {one.chain_key}: {one.reason}", err=True)
    for line in (*prepared.facts, *run_summary({"": loaded}, chains)):
        typer.echo(line)
    if loaded.evaluation.patience is not None:
        typer.echo(_early_stop(loaded.evaluation.patience, beside=evaluates_beside(profile)))
    command = snakemake_command(request.settings, profile, options or [])
    typer.echo(f"workflow: {shlex.join(command)}")
    if not prepare_only:
        status = _run([sys.executable, "-m", *command])
        if status != 0:
            typer.echo("the workflow did not finish: run this command again to continue", err=True)
            raise typer.Exit(status)
        for line in outcome(loaded):
            typer.echo(line)
    if prepared.unusable:
        number = len(prepared.unusable)
        typer.echo(
            f"exit code 2: structures or chains that cannot be used were left out: {number}, "
            f"listed in {request.rejected}",
            err=True,
        )
        raise typer.Exit(EXIT_INPUT_ERROR)


def _early_stop(patience: int, *, beside: bool) -> str:
    end = f"early stop: training ends after {patience} evaluations without a gain"
    if beside:
        return end
    return (
        f"{end}, if evaluations run beside it. With one GPU they wait until training has ended; "
        "`-- --resources gpu=2` lets both share it, if its memory is large enough"
    )


def _run(command: list[str]) -> int:
    """Run a program to its end, also after Ctrl-C, which it gets as well and ends on."""
    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
