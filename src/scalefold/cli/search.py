"""``scalefold search``, ``unaligned``, ``build-db``: alignments that no mirror has."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalefold.cli.options import ConfigFiles, Overrides, ShardFolder, parse_part, read_config
from scalefold.errors import InputError, counted

if TYPE_CHECKING:
    from scalefold.raw.rejected import Rejected

_EXIT_TERMINATED = 143


app = typer.Typer()


@app.command(
    rich_help_panel="Data",
    epilog="Example: [cyan]scalefold search my.fasta -c my.yaml --out searched[/]",
)
def search(
    fasta: Annotated[Path, typer.Argument(metavar="FASTA", help="Protein sequences.")],
    config: ConfigFiles,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Raw folder.")],
    part: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER/PARTS",
            help="Only one part of the sequences, such as 0/8. Sequences that are set aside are "
            "then no error: packing lists them.",
        ),
    ] = None,
    set_: Overrides = None,
) -> None:
    """Search alignments and template hits for sequences, as the section search says.

    The output folder is one that `scalefold pack` reads. It can be interrupted and started again.
    rejected-search.tsv lists the sequences without a result, with the reason; the exit code is 2 if
    there are any.
    """
    from scalefold.raw.fasta import part_of, read_fasta
    from scalefold.raw.rejected import Rejected
    from scalefold.search import search as searching

    signal.signal(signal.SIGTERM, _end)
    loaded = read_config(config, set_)
    number, parts = (None, 1) if part is None else parse_part(part)
    is_empty_list = number is not None and fasta.is_file() and fasta.stat().st_size == 0
    records, unread = ([], []) if is_empty_list else read_fasta(fasta)
    if number is not None:
        records = [r for r in records if part_of(r, parts) == number]
        unread = unread if number == 0 else []
    set_aside = [Rejected(r.name, "search", f"{r.reason} ({fasta}, line {r.line})") for r in unread]
    summary = searching.search(records, loaded, out, part=number, set_aside=set_aside)
    for outcome, count in sorted(summary.outcomes.items()):
        typer.echo(f"{count:>10,}  {outcome}")
    _say_rejected(summary.rejected)
    if summary.rejected and number is None:
        total = len(records) + len(unread)
        raise InputError(f"{len(summary.rejected)} of {total} sequences were set aside, see above")


@app.command(
    rich_help_panel="Data",
    epilog="Example: [cyan]scalefold unaligned -c my.yaml --raw results/my/raw "
    "--shards results/my/shards --out unaligned.fasta[/]",
)
def unaligned(
    config: ConfigFiles,
    raw: Annotated[Path, typer.Option("--raw", metavar="FOLDER", help="Raw folder.")],
    shards: ShardFolder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="FASTA to write.")],
    set_: Overrides = None,
) -> None:
    """List the packed chains whose sequence has no alignment, one chain for each sequence.

    The workflow searches these if the configuration has a section search.
    """
    from scalefold.io.atomic import write_bytes
    from scalefold.search import unaligned as listing

    records = listing.unaligned(read_config(config, set_), raw, shards)
    write_bytes(out, "".join(f">{r.name}\n{r.sequence}\n" for r in records).encode())
    typer.echo(f"{out}: {counted(len(records), 'sequence')} without an alignment")


@app.command(
    name="build-db",
    rich_help_panel="Data",
    epilog="Example: [cyan]scalefold build-db results/demo/shards --out databases/demo[/]",
)
def build_db(
    source: Annotated[
        Path, typer.Argument(help="Folder of alignments (.a3m, .sto), raw folder, or shard folder.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="PREFIX", help="Path and name of the database.")
    ],
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Profiles at a time.")] = 1,
    max_minutes: Annotated[float, typer.Option(help="Longest time for one profile.")] = 60.0,
    max_memory_gigabytes: Annotated[float, typer.Option(help="Memory of each program.")] = 16.0,
) -> None:
    """Build an HH-suite database, such as one of templates for hhsearch.

    It can be interrupted and started again. Alignments that cannot be used are listed and left out;
    the exit code is 2 if there are any.
    """
    from scalefold.search import build_database as building
    from scalefold.search.process import Limits
    from scalefold.shards.schema import MANIFEST_FILE

    signal.signal(signal.SIGTERM, _end)
    is_packed = (source / MANIFEST_FILE).is_file()
    alignments = (
        building.alignments_of_shards(source)
        if is_packed
        else building.alignments_of_folder(source)
    )
    rejected = building.build_database(
        out, alignments, Limits(max_minutes, max_memory_gigabytes), jobs
    )
    typer.echo(f"{out}: {len(alignments) - len(rejected):,} entries")
    _say_rejected(rejected)
    if rejected:
        raise InputError(f"{len(rejected)} of {len(alignments)} were left out, see above")


def _say_rejected(rejected: Sequence[Rejected]) -> None:
    for item in rejected:
        typer.echo(f"{item.chain_key}: {item.reason}", err=True)


def _end(number: int, frame: object) -> None:
    """End as an exception does, so that programs which were started are ended too."""
    raise SystemExit(_EXIT_TERMINATED)
