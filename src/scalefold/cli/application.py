"""The application: its commands, and how errors leave it.

Exit codes: 0 done; 1 an error of the program (with traceback), or nobody reads the output any more
(silently, as ``| head`` has it; Typer and Rich do so); 2 an error of the user's input or of
the command line (one message); 75 training was stopped before its end and can be resumed; 130
interrupted.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup, TyperOption

from scalefold import __version__
from scalefold.cli import (
    bench,
    chains,
    configuration,
    convert,
    data,
    distil,
    doctor,
    evaluate,
    finetune,
    mlperf_log,
    monitor,
    plan,
    predict,
    profile,
    relax,
    report,
    search,
    train,
    weights,
)
from scalefold.cli.logs import log_to_stderr
from scalefold.cli.options import EXIT_INPUT_ERROR
from scalefold.errors import ElsewhereError, InputError, RankLostError, UnreadableError

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130


class _PlainFlags:
    """Shows no type beside flags, since they take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # a command's
        for option in params:
            if isinstance(option, TyperOption) and option.is_flag:
                option.metavar = ""
        return params


class _Command(_PlainFlags, TyperCommand):
    pass


class _Group(_PlainFlags, TyperGroup):
    pass


class _Commands(_Group):
    """Prints errors that are not the program's as one message instead of a traceback."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _errors_printed():  # --help and --version print here
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _errors_printed():
            return super().invoke(ctx)


@contextmanager
def _errors_printed() -> Iterator[None]:
    try:
        yield
    except ElsewhereError:
        raise typer.Exit(EXIT_INPUT_ERROR) from None
    except InputError as error:
        _print_error(str(error))
        raise typer.Exit(EXIT_INPUT_ERROR) from None
    except RankLostError as error:
        _print_error(str(error))
        raise typer.Exit(EXIT_ERROR) from None
    except OSError as error:
        message = _explain(error)
        if message is None:
            raise
        _print_error(message)
        _drop_unwritten_output()
        raise typer.Exit(EXIT_INPUT_ERROR) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted", style="red")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _print_error(message: str) -> None:
    text = Text.assemble(("error: ", "bold red"), (message, "red"))
    Console(stderr=True).print(text, soft_wrap=True)


def _drop_unwritten_output() -> None:
    """Keep Python from trying again at its end what cannot be written to standard output."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: OSError) -> str | None:
    """How to fix an error of the system that is the user's: a permission, a full disk.

    Most outputs have an `InputError` of their own.
    """
    from scalefold.io.atomic import NO_ROOM

    if isinstance(error, PermissionError) and error.filename is not None:
        file = Path(os.fsdecode(error.filename))
        is_new = os.access(file.parent, os.X_OK) and not os.path.lexists(file)
        if is_new or os.access(file, os.R_OK):
            return f"{file}: may not be written: you have no permission. Choose another file"
        return str(UnreadableError.of(file))
    if error.errno in NO_ROOM:
        where = error.filename or "the output"  # such as standard output: writing names no file
        return f"no room for {where} ({error.strerror}): make some, or choose another place"
    return None


_ABOUT = (
    "From raw protein data to trained AlphaFold2-class weights.\n\n"
    "[cyan]scalefold config check -c my.yaml[/] checks and summarises a run, and "
    "[cyan]snakemake --profile local --configfile my.yaml[/] runs it. The workflow calls fetch, "
    "pack, train, evaluate and report, in this order. Search, predict and relax are optional."
)

app = typer.Typer(
    cls=_Commands,
    name="scalefold",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 error of the program, 2 error of the "
    "input, 75 training stopped early and --resume continues it, 130 interrupted.",
)


def _shape_help(group: typer.Typer) -> None:
    """Use docstrings as help, without line breaks, most of which Typer would keep.

    Flags have no type beside them.
    """
    for command in group.registered_commands:
        command.cls = _Command
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)
    for below in group.registered_groups:
        if below.typer_instance is not None:
            below.cls = _Group
            _shape_help(below.typer_instance)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"scalefold {__version__}")
        raise typer.Exit


@app.callback(help=_ABOUT)
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Every command passes here."""
    log_to_stderr()


for module in (
    chains,
    data,
    convert,
    search,
    train,
    evaluate,
    report,
    finetune,
    plan,
    monitor,
    predict,
    relax,
    distil,
    mlperf_log,
    profile,
    doctor,
):
    app.add_typer(module.app)
app.add_typer(bench.app, name="bench", rich_help_panel="Tools")
app.add_typer(weights.app, name="weights", rich_help_panel="Tools")
app.add_typer(configuration.app, name="config", rich_help_panel="Tools")
_shape_help(app)
