"""The application: its commands, and how errors leave it.

Exit codes: 0 done; 1 an error of the program (with traceback); 2 an error of the user's input or of
the command line (one message); 75 a training was stopped before its end and can be resumed; 130
interrupted.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from scalefold import __version__
from scalefold.cli import bench, configuration, data, profile, training, weights
from scalefold.cli.logs import log_to_stderr
from scalefold.errors import ElsewhereError, InputError, RankLostError

EXIT_ERROR = 1
EXIT_INPUT_ERROR = 2
EXIT_INTERRUPTED = 130


class _Commands(TyperGroup):
    """Prints errors that are not the program's as one message instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ElsewhereError:
            raise typer.Exit(EXIT_INPUT_ERROR) from None
        except (InputError, RankLostError) as error:
            message = Text.assemble(("error: ", "bold red"), (str(error), "red"))
            Console(stderr=True).print(message, soft_wrap=True)
            is_input = isinstance(error, InputError)
            raise typer.Exit(EXIT_INPUT_ERROR if is_input else EXIT_ERROR) from None
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted", style="red")
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    name="scalefold",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="The way of the data: fetch, pack, train, evaluate, report; `snakemake --profile local` "
    "runs them all. Exit codes: 0 done, 1 error of the program, 2 error of the input, 75 a "
    "training was stopped before its end and can be resumed, 130 interrupted.",
)


def _let_paragraphs_flow(group: typer.Typer) -> None:
    """Give commands their docstrings as help without line breaks, of which Typer keeps most."""
    for command in group.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)
    for below in group.registered_groups:
        if below.typer_instance is not None:
            _let_paragraphs_flow(below.typer_instance)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"scalefold {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """From raw protein data to trained AlphaFold2-class weights."""
    log_to_stderr()


data.register(app)
training.register(app)
profile.register(app)
app.add_typer(bench.app, name="bench")
app.add_typer(weights.app, name="weights")
app.add_typer(configuration.app, name="config")
_let_paragraphs_flow(app)
