"""``scalefold convert``: alignments of other codes, and structures, as folders for mirrors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from scalefold.cli.options import check_there
from scalefold.errors import InputError, counted

_READ: Final = (
    "Reads OpenFold's alignment databases (a folder of .index files, or one .index file), "
    "AlphaFold's features.pkl, Stockholm files (.sto), and folders of structures. An a3m needs no "
    "conversion: a mirror has it as pdb/<chain>/a3m/<name>.a3m. OpenFold's chain caches are for "
    "`scalefold chains`"
)

app = typer.Typer()


@app.command(
    rich_help_panel="Data",
    epilog="Examples: [cyan]scalefold convert alignment_db --out alignments[/], "
    "[cyan]scalefold convert T1024/features.pkl --out alignments --chain t1024_A[/]",
)
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="OpenFold's alignment databases (a folder with super.index, or an .index file), "
            "AlphaFold's features.pkl, a Stockholm file (.sto), or a folder of structures of any "
            "formats."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Gets pdb/<chain>/a3m/... and hhr/..., or of structures <entry>.cif.gz: a mirror.",
        ),
    ],
    chain: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The chain of a features.pkl or .sto, such as 5pti_A."),
    ] = None,
) -> None:
    """Convert alignments of OpenFold, AlphaFold and HMMER, or structures, to files of a mirror.

    Of identical chains one has the files, which serve all. What cannot be used is listed and left
    out; the exit code is 2 if there is any. OpenFold's databases can be interrupted and started
    again.
    """
    from scalefold.chains.folders import structure_files

    check_there(source, "alignments or structures to convert")
    if source.suffix in (".pkl", ".sto"):
        _one_alignment(source, out, chain)
    elif source.is_dir() and structure_files(source):
        _structures(source, out)
    elif source.is_dir() or source.suffix == ".index":
        _databases(source, out)
    else:
        raise InputError(f"{source}: cannot be converted. {_READ}")


def _one_alignment(source: Path, out: Path, chain: str | None) -> None:
    from scalefold.io.atomic import make_folder, write_bytes
    from scalefold.raw.alphafold_features import features_to_a3m
    from scalefold.raw.chain_key import is_chain_key
    from scalefold.search.given_alignments import read_given

    if chain is None or not is_chain_key(chain):
        raise InputError(f"{source}: name its chain by --chain, such as 5pti_A")
    if source.suffix == ".pkl":
        name, content = "alphafold_hits", features_to_a3m(source)
    else:
        name, content = source.stem, read_given(source)
    target = out / "pdb" / chain / "a3m" / f"{name}.a3m"
    make_folder(target.parent)
    write_bytes(target, content)
    typer.echo(f"{target}: {content.count(b'>'):,} rows; data.alignments: [{name}]")


def _structures(source: Path, out: Path) -> None:
    from scalefold.finetune.structures import MIRROR_PATH, collect_structures
    from scalefold.raw.compressed import MAX_STRUCTURE_BYTES, SHRINK

    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out}: is not empty. Name a new folder, or delete what it holds")
    made = collect_structures(source, out, MAX_STRUCTURE_BYTES, 1, SHRINK)
    typer.echo(
        f"{out}: {counted(len(made.sequences), 'chain')} of "
        f"{counted(made.num_files, 'structure')}; data.mirrors: "
        f'{{mmcif: [{out}], mmcif_path: "{MIRROR_PATH}"}}'
    )
    _check_complete(source, [f"{one.chain_key}: {one.reason}" for one in made.rejected])


def _databases(source: Path, out: Path) -> None:
    from rich.console import Console
    from rich.progress import track

    from scalefold.raw.openfold_database import database_indices, unpack_database

    indices = database_indices(source) if source.is_dir() else [source]
    if not indices:
        raise InputError(f"{source}: holds nothing that can be converted. {_READ}")
    count, skipped = 0, []
    for problem in track(
        unpack_database(indices, out), description="chains", console=Console(stderr=True)
    ):
        count += 1
        if problem is not None:
            skipped.append(problem)
    if not count:
        raise InputError(f"{source}: its index names no chain")
    typer.echo(f"{out}: {count - len(skipped):,} of {count:,} chains")
    _check_complete(source, skipped)


def _check_complete(source: Path, left_out: Sequence[str]) -> None:
    for reason in left_out:
        typer.echo(reason, err=True)
    if left_out:
        raise InputError(f"{source}: {len(left_out):,} left out, listed above")
