"""``scalefold weights``: exchange weights with other codes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scalefold.cli.options import Overrides, check_there, parse_overrides, read_config
from scalefold.errors import InputError

if TYPE_CHECKING:
    from scalefold.config.model import ModelConfig

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Import and export weights: OpenFold, AlphaFold, MLPerf. Fetch AlphaFold's.",
)
Preset = Annotated[
    str | None, typer.Option(metavar="NAME", help="Preset of the model, such as model_1_ptm.")
]
ModelFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="Configuration of the run that has the model."
    ),
]


@app.command(epilog="Example: [cyan]scalefold weights fetch --out alphafold[/]")
def fetch(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where to.")],
    mirror: Annotated[
        str | None, typer.Option(metavar="ROOT", help="Folder or address that has the archive.")
    ] = None,
) -> None:
    """Fetch AlphaFold's published parameters, 5.3 GB, which are under CC BY 4.0.

    No hash of their archive is published. If the server states an MD5, as Google's does, the
    archive must have it. Its SHA-256 and size are printed and kept in the folder, so that you can
    compare another download.

    It can be interrupted and started again. `scalefold predict`, `evaluate` and `finetune` take the
    files as they are.
    """
    from scalefold.fetch.alphafold_parameters import LICENCE, RECORD, ROOT, fetch_parameters

    files = fetch_parameters(out, mirror or ROOT)
    typer.echo(f"{out}: {len(files)} files, AlphaFold's parameters, {LICENCE}")
    typer.echo(f"SHA-256 and size of their archive, in {out / RECORD}:")
    typer.echo((out / RECORD).read_text("utf-8").rstrip())


@app.command(
    "import",
    epilog="Example: [cyan]scalefold weights import params_model_1.npz --format alphafold "
    "--preset model_1 --out model_1.pt[/]",
)
def import_(
    path: Annotated[Path, typer.Argument(help="The other code's file (.npz, .pt, .ckpt).")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Weights to write.")],
    source_format: Annotated[
        Literal["openfold", "alphafold", "mlperf"] | None,
        typer.Option("--format", "-f", help="Default: by the file's name."),
    ] = None,
    preset: Preset = None,
    config: ModelFiles = None,
    set_: Overrides = None,
) -> None:
    """Convert another code's weights to a file for training.initial_weights.

    --preset or --config says which model they belong to. If a parameter is missing, unknown or of
    another shape, all such parameters are listed and nothing is written.
    """
    check_there(path, "weight file")
    model = _model(preset, config, set_)

    from scalefold.checkpoint.read import METADATA_FILE
    from scalefold.weights import export_weights, guess_format, import_weights

    if (path / METADATA_FILE).is_file():
        raise InputError(
            f"{path}: is ScaleFold's own checkpoint, so there is nothing to import: "
            "training.initial_weights and `scalefold evaluate` take the folder as it is, and "
            "`scalefold weights export` makes one file of it"
        )
    state = import_weights(path, source_format or guess_format(path), model)
    # ScaleFold's weight files are OpenFold's: a state dictionary of the same names.
    export_weights(state, model, out)
    count = sum(value.numel() for value in state.values())
    typer.echo(f"{out}: {len(state)} tensors, {count:,} parameters")


@app.command(
    epilog="Example: [cyan]scalefold weights export training/step-00001000 --out openfold.pt[/]"
)
def export(
    path: Annotated[
        Path, typer.Argument(help="A checkpoint folder, or a weight file with --preset/--config.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.")],
    target_format: Annotated[
        Literal["openfold"], typer.Option("--format", "-f", help="Whose format.")
    ] = "openfold",
    which: Annotated[
        Literal["averaged", "weights"],
        typer.Option(help="Of a checkpoint: averaged weights, or those of its last step."),
    ] = "averaged",
    preset: Preset = None,
    config: ModelFiles = None,
    set_: Overrides = None,
) -> None:
    """Convert a checkpoint's weights to a file that another code loads."""
    check_there(path, "checkpoint folder or weight file")

    from scalefold.checkpoint.read import METADATA_FILE
    from scalefold.weights import export_weights, import_weights

    if (out.parent / METADATA_FILE).is_file():
        raise InputError(f"{out}: {out.parent} is a checkpoint: write to another folder")
    if path.is_dir():
        from scalefold.checkpoint.read import load_weights, read_metadata
        from scalefold.config import make_config

        if preset or config:
            raise InputError(f"{path}: a checkpoint states its model: leave out --preset, --config")
        model = make_config(read_metadata(path).config, source=str(path)).model
        state = load_weights(path, which)
    else:
        model = _model(preset, config, set_)
        state = import_weights(path, "openfold", model)
    export_weights(state, model, out)
    typer.echo(f"{out}: weights of {path}, format {target_format}")


def _model(
    preset: str | None, config: list[Path] | None, overrides: list[str] | None
) -> ModelConfig:
    """Return the sizes of the model from a preset's name or a run's configuration."""
    if (preset is None) == (not config):
        raise InputError(
            "give either --preset NAME or --config FILE (-c), to say which model the weights are of"
        )
    if config:
        return read_config(config, overrides).model
    from scalefold.config import preset_model

    return preset_model(str(preset), parse_overrides(overrides or []))
