"""``scalefold chains``: make the list of chains that ``data.chains`` names."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scalefold.cli.options import checked_file
from scalefold.errors import InputError, first_few

if TYPE_CHECKING:
    from scalefold.chains.make import ChainList

PUBLISHED = {"train": 594_595, "validation": 180}
"""Chains of the MLPerf HPC v3.0 benchmark, by its logs."""


app = typer.Typer()


@app.command(
    rich_help_panel="Data",
    epilog="Examples: [cyan]scalefold chains my_structures -o chains.tsv[/], "
    "[cyan]scalefold chains duplicate_pdb_chains.txt mmcif_cache.json --train-until 2021-09-30 "
    "-o chains.tsv[/]",
)
def chains(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...",
            help="What says which chains there are, or more about them: "
            "OpenProteinSet's folder or duplicate_pdb_chains.txt; a folder of structures, of "
            "alignments or of packed shards; pdb_seqres.txt.gz or another FASTA file; OpenFold's "
            "mmcif_cache.json, chain_data_cache.json or super.index; MLPerf's chains.csv; wwPDB's "
            "obsolete.dat.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", callback=checked_file, help="The list to write."
        ),
    ],
    clusters: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|mmseqs|none",
            help="[cyan]mmseqs[/] computes clusters at 40 % identity by MMseqs2. A file: RCSB's "
            "clusters by entity. [cyan]none[/]: only equal sequences are kept together. Default: "
            "the clusters that a source has, else mmseqs.",
        ),
    ] = None,
    train_until: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="Train on chains released until this day (YYYY-MM-DD). Validation chains are "
            "later ones, of clusters without a training chain.",
        ),
    ] = None,
    train: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=1,
            help="At most this many training chains: whole clusters, at random. Default: all.",
        ),
    ] = None,
    validation: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=0,
            help="Validation chains, each of another cluster. Default: a tenth of the clusters, "
            "200 at most.",
        ),
    ] = None,
    validation_list: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A text that names the validation chains, as 7bgg_A or as CAMEO's 7bgg [A].",
        ),
    ] = None,
    max_resolution: Annotated[
        float,
        typer.Option(metavar="ANGSTROM", help="Leave out chains of this resolution or worse."),
    ] = 9.0,
    max_one_residue: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Leave out chains with more than this of one residue type."
        ),
    ] = 0.8,
    min_length: Annotated[
        int | None, typer.Option(metavar="RESIDUES", min=1, help="Leave out shorter chains.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(metavar="RESIDUES", min=1, help="Leave out longer chains.")
    ] = None,
    max_without_cluster: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the chains that may have no cluster.")
    ] = 0.01,
    templates: Annotated[
        bool, typer.Option("--templates", help="List all other chains of the sources as templates.")
    ] = False,
    preset: Annotated[
        Literal["mlperf"] | None,
        typer.Option(
            help="[cyan]mlperf[/]: the MLPerf HPC v3.0 set. Its validation chains are CAMEO's, so "
            "it needs --validation-list."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes.")] = 1,
) -> None:
    """Make the list of chains: data.chains, with clusters and splits.

    Chains with alignments are listed if a source says which these are, otherwise those of the first
    source. No cluster is in training and in validation.
    """
    from rich.console import Console

    from scalefold.chains.make import make_chain_list
    from scalefold.chains.splits import Rules
    from scalefold.chains.summary import summary_table

    rules = Rules(
        max_resolution=max_resolution,
        max_one_residue=max_one_residue,
        min_length=min_length,
        max_length=max_length,
        train_until=_date(train_until),
        num_train=train,
        num_validation=validation,
        templates=templates,
    )
    if preset == "mlperf":
        if rules != Rules():
            raise InputError(
                "--preset mlperf has filters and splits of its own: leave out the options for "
                "them, or the preset"
            )
        if validation_list is None:
            raise InputError(
                "--preset mlperf: its validation chains are CAMEO's targets of three months. Give "
                "--validation-list the file openfold/openfold/data/cameo_targets.py of "
                "https://github.com/mlcommons/hpc"
            )
        rules = Rules.mlperf()
    before = out.read_bytes() if out.is_file() else None
    made = make_chain_list(
        sources,
        _clusters(clusters),
        rules,
        out,
        validation=validation_list,
        max_without_cluster=max_without_cluster,
        jobs=jobs,
    )
    Console().print(summary_table(made.chains, made.choice.splits))
    is_other = before is not None and before != out.read_bytes()
    _say(made, f"replaced {out}" if is_other else str(out))
    if preset == "mlperf":
        counts = list(made.choice.splits.values())
        typer.echo(
            "MLPerf HPC v3.0 has "
            + ", ".join(
                f"{number:,} {split} chains (here {counts.count(split):,})"  # type: ignore[arg-type]
                for split, number in PUBLISHED.items()
            )
        )


def _clusters(text: str | None) -> Path | Literal["mmseqs", "none"] | None:
    match text:
        case "mmseqs" | "none" | None:
            return text
        case _ if Path(text).is_file():
            return Path(text)
    raise InputError(f"--clusters {text}: no such file. Name a file, or give mmseqs or none")


def _date(text: str | None) -> datetime.date | None:
    try:
        return None if text is None else datetime.date.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"--train-until {text}: no day such as 2021-09-30 ({error})") from error


def _say(made: ChainList, what: str) -> None:
    typer.echo(f"{what}: {len(made.choice.splits):,} of {len(made.chains):,} chains listed")
    for reason, count in made.choice.taken.items():
        typer.echo(f"{count:>10,}  {reason}")
    if made.assigned is not None:
        typer.echo(
            f"clusters: {made.assigned.by_entity:,} chains by entity, "
            f"{made.assigned.by_sequence:,} by equal sequences, {made.assigned.ambiguous:,} "
            "ambiguous and so without"
        )
    unobserved = [
        key
        for key, split in made.choice.splits.items()
        if split == "validation" and made.chains[key].is_mostly_unobserved
    ]
    if unobserved:
        typer.echo(
            f"warning: validation chains without atoms for most of their residues: "
            f"{first_few(unobserved)}. Their scores say little: take these structures out, or "
            "choose other chains by --validation-list",
            err=True,
        )
    if made.num_relatives:
        typer.echo(
            f"{made.num_relatives:,} training chains are relatives of validation chains, as this "
            "preset allows",
            err=True,
        )
