"""The files that Snakemake's command line names, checked before Snakemake reads them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from scalefold.config.load import read_files
from scalefold.errors import InputError


def check_named_files(arguments: Sequence[str]) -> None:
    """Refuse a file of ``--configfile`` that is missing or no YAML in one line.

    Of a missing one, Snakemake prints a traceback; of broken YAML neither file nor line. The
    profiles call this while Snakemake reads them.

    Raises
    ------
    SystemExit
        With the message.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--configfile", "--configfiles", nargs="*", type=Path, default=[])
    for file in parser.parse_known_args(arguments)[0].configfile:
        if not file.is_file():
            raise SystemExit(
                f"--configfile {file}: no such file. Correct the path; if it is a target, put it "
                "before --configfile"
            )
        try:
            read_files([file], {})
        except InputError as error:
            raise SystemExit(f"--configfile {error}") from None
