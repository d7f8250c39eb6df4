"""``scalefold fetch``, ``pack``, ``inspect``, ``verify``: from raw files to shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scalefold.cli.options import ConfigFiles, Overrides, check_there, read_config
from scalefold.errors import InputError, counted, listed

if TYPE_CHECKING:
    from scalefold.fetch.plan import FetchPlan
    from scalefold.raw.rejected import Rejected

Bucket = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER", help="Only the chains of this hash bucket, 0 to data.buckets - 1."
    ),
]
RawFolder = Annotated[
    Path, typer.Option("--raw", metavar="FOLDER", help="Raw files that `scalefold fetch` wrote.")
]


app = typer.Typer()


@app.command(
    rich_help_panel="Data",
    epilog="Example: [cyan]scalefold fetch -c demo/config.yaml --out results/demo/raw[/]",
)
def fetch(
    config: ConfigFiles,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Raw folder.")],
    only: Annotated[
        Literal["structures", "alignments"] | None,
        typer.Option(help="mmCIF files only, or alignments and template hits only."),
    ] = None,
    bucket: Bucket = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", "-n", help="Say how much there is to fetch, and whether it fits the disk."
        ),
    ] = False,
    set_: Overrides = None,
) -> None:
    """Fetch the raw files of the listed chains: mmCIF, alignments, template hits.

    It can be interrupted and started again. rejected.tsv lists the chains that have no structure or
    no alignment, with the reason. With --only and --bucket it is rejected-<only>-<bucket>.tsv.
    """
    from scalefold.fetch.on_mirrors import check_files
    from scalefold.fetch.plan import plan_fetch
    from scalefold.fetch.run import fetch as fetch_files
    from scalefold.fetch.shared_alignments import SharedAlignments
    from scalefold.fetch.summary import NO_ALIGNMENT
    from scalefold.raw.chains import read_chains
    from scalefold.shards.bucket_count import with_bucket_count
    from scalefold.shards.buckets import bucket_chains
    from scalefold.shards.schema import MANIFEST_FILE

    loaded = read_config(config, set_)
    if (out / MANIFEST_FILE).is_file():
        raise InputError(f"{out}: --out holds shards. Name a folder of its own for raw files")
    chains = read_chains(loaded.data.chains)
    if not any(chain.split == "train" for chain in chains):
        typer.echo(
            f"{loaded.data.chains}: no chain of split train, so this is for evaluation only",
            err=True,
        )
    shared = SharedAlignments.of(loaded.data, chains)
    if bucket is None and loaded.search is None:  # a search makes what no mirror has
        check_files(chains, loaded.data, only, out)
    if bucket is not None:
        shards = loaded.results / loaded.run_name / "shards"
        buckets = with_bucket_count(loaded, shards, chains).data.num_buckets
        chains = bucket_chains(chains, bucket, buckets)
    if dry_run:
        plan = plan_fetch(chains, loaded.data, out, only=only, shared=shared)
        _say_plan(plan, out)
        plan.check(out)
        return
    summary = fetch_files(chains, loaded.data, out, only=only, bucket=bucket, shared=shared)
    typer.echo(
        f"{out}: {len(summary.complete):,} of {len(chains):,} chains complete, "
        f"{summary.num_files:,} of {summary.num_asked:,} files, {summary.num_bytes / 1e6:,.1f} MB"
    )
    for root, reasons in summary.failures.items():
        typer.echo(
            f"{root} failed for {counted(len(reasons), 'file')}; another mirror or an earlier "
            f"fetch gave them. The first failure: {reasons[0]}",
            err=True,
        )
    for name, keys in summary.absent.items():
        _say_absent(name, len(keys), summary.num_searched)
    unaligned = [r for r in summary.rejected if r.reason.startswith(NO_ALIGNMENT)]
    _say_rejected([r for r in summary.rejected if r not in unaligned])
    if unaligned:
        typer.echo(
            f"without an alignment of their own, {len(unaligned)}; pack uses that of a chain of "
            f"the same sequence, if there is one:{listed([r.chain_key for r in unaligned])}",
            err=True,
        )


def _say_plan(plan: FetchPlan, out: Path) -> None:
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    table = Table(title=f"{out}: to fetch", title_justify="left")
    for column in ("files", "listed", "there", "of the others on mirrors", "about"):
        table.add_column(column, justify="left" if column == "files" else "right")
    for kind in plan.kinds:
        error = f" +- {decimal(round(kind.error_bytes))}" if kind.error_bytes else ""
        size = decimal(round(kind.num_bytes)) + error
        counts = (f"{kind.num_files:,}", f"{kind.num_there:,}", f"{kind.share_had:.0%}")
        table.add_row(kind.name, *counts, size)
    Console().print(table)
    typer.echo(f"about {decimal(round(plan.num_bytes))} to fetch, {decimal(plan.free_bytes)} free")


def _say_absent(name: str, num_absent: int, num_chains: int) -> None:
    if num_absent < num_chains:
        typer.echo(f"no mirror has {name} for {num_absent} of {num_chains} chains", err=True)
        return
    key = "template_hits" if name.endswith(".hhr") else "alignments"
    typer.echo(
        f"no mirror has {name} for any of {num_chains} chains: check its name in data.{key} and "
        "the path in data.mirrors",
        err=True,
    )


def _say_rejected(rejected: Sequence[Rejected]) -> None:
    if rejected:
        reasons = listed([f"{r.chain_key}: {r.reason}" for r in rejected])
        typer.echo(f"set aside, {len(rejected)}:{reasons}", err=True)


@app.command(
    rich_help_panel="Data",
    epilog="Example: [cyan]scalefold pack -c demo/config.yaml --raw results/demo/raw "
    "--out results/demo/shards[/]",
)
def pack(
    config: ConfigFiles,
    raw: RawFolder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Shard folder.")],
    stage: Annotated[
        Literal["structures", "alignments", "index", "all"],
        typer.Option(
            help="[cyan]structures[/]: chain shards; [cyan]alignments[/]: msa shards, needs the "
            "bucket's chain shard; [cyan]index[/]: templates, index, manifest, needs all shards."
        ),
    ] = "all",
    bucket: Bucket = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Processes, with --stage all.")
    ] = 1,
    set_: Overrides = None,
) -> None:
    """Pack raw files into Arrow shards.

    rejected.tsv lists the chains that cannot be used, with the reason. The others are packed.
    """
    from scalefold.shards import pack as packing
    from scalefold.shards.schema import REJECTED_FILE

    loaded = read_config(config, set_)
    if (out / "mmcif").is_dir():
        raise InputError(f"{out}: --out holds raw files. Name a folder of its own for the shards")
    per_bucket = stage in ("structures", "alignments")
    if per_bucket != (bucket is not None):
        raise InputError(
            f"--stage {stage} "
            + (
                "works on one bucket: add --bucket"
                if per_bucket
                else "works on all buckets: leave out --bucket, or choose --stage structures or "
                "alignments"
            )
        )
    if bucket is None:
        manifest = (
            packing.pack(loaded, raw, out, jobs=jobs)
            if stage == "all"
            else packing.pack_index(loaded, raw, out)
        )
        typer.echo(f"{out}:")
        for name, count in manifest.counts.items():
            typer.echo(f"{count:>10,}  {name}")
        if manifest.num_sharing > 0:
            typer.echo(
                f"{manifest.num_sharing:>10,}  chains that use the alignment of another of the "
                "same sequence; their own files are ignored"
            )
        if manifest.counts["chains set aside"]:
            typer.echo(f"{out / REJECTED_FILE} says why chains were set aside", err=True)
        return
    work = packing.pack_structures if stage == "structures" else packing.pack_alignments
    summary = work(loaded, raw, out, bucket)
    typer.echo(
        f"{out / summary.head.shard.file}: {summary.head.shard.rows} rows, "
        f"{summary.head.shard.bytes / 1e6:.1f} MB"
    )
    _say_rejected(summary.head.rejected)


@app.command(
    rich_help_panel="Data",
    epilog="Examples: [cyan]scalefold inspect results/demo/shards[/], "
    "[cyan]scalefold inspect results/demo/shards --chain 5pti_A[/], "
    "[cyan]scalefold inspect 1ay7.cif.gz[/], [cyan]scalefold inspect uniref90_hits.a3m[/]",
)
def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            help="A shard folder, one .arrow file of it, a structure (mmCIF, PDB), or an alignment "
            "(.a3m, .sto)."
        ),
    ],
    chain: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Show this chain of the folder, such as 5pti_A."),
    ] = None,
) -> None:
    """Show what a shard folder, a shard file, one chain, a structure or an alignment holds.

    Of a structure, it lists each chain by the authors' and the archive's names.
    """
    from rich.console import Console

    from scalefold.raw.a3m import parse_a3m
    from scalefold.raw.entry_table import describe_entry
    from scalefold.raw.raw_folder import STRUCTURE_SUFFIXES
    from scalefold.search.a3m import query_of
    from scalefold.search.given_alignments import ENDINGS, read_given
    from scalefold.shards import inspect as inspection

    check_there(path, "shard folder, shard file, structure or alignment")
    console = Console()
    if chain is not None:
        inspection.describe_chain(path, chain, console)
    elif path.name.endswith(STRUCTURE_SUFFIXES):
        describe_entry(path, console)
    elif path.name.endswith(ENDINGS):
        content = read_given(path)
        query = query_of(content, str(path))
        inspection.describe_alignment(path, query, parse_a3m(content, query, str(path)), console)
    else:
        inspection.describe_folder(path, console)


@app.command(
    rich_help_panel="Data", epilog="Example: [cyan]scalefold verify results/demo/shards[/]"
)
def verify(shards: Annotated[Path, typer.Argument(help="Shard folder.")]) -> None:
    """Check every hash of a shard folder, and that its files agree with each other.

    Exit code 2 if anything is wrong.
    """
    from scalefold.shards import verify as verification

    problems = verification.verify(shards)
    for leftover in verification.leftovers(shards):
        typer.echo(
            f"{leftover}: a writer that was killed left it (or one still writes it). Nothing reads "
            "it: delete it once nothing packs here",
            err=True,
        )
    for old in verification.stale(shards):
        typer.echo(
            f"{old}: of another list of chains or number of buckets. Nothing reads it: delete it "
            f"and {old.with_suffix('.json').name} to make room",
            err=True,
        )
    for problem in problems:
        path = str(shards / problem.file)
        about = "" if path in problem.message else f"{path}: "
        typer.echo(f"{about}{problem.message}", err=True)
    if problems:
        raise InputError(f"{shards}: {counted(len(problems), 'problem')}, listed above")
    typer.echo(f"{shards}: all files, rows and references are sound")
