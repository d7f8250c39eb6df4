"""The files that Snakemake's command line names, checked before Snakemake reads them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def check_named_files(arguments: Sequence[str]) -> None:
    """Refuse a missing file of ``--configfile`` in one line, where Snakemake ends in a traceback.

    The profiles call this while Snakemake reads them.

    Raises
    ------
    SystemExit
        With the message, if a file is missing.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--configfile", "--configfiles", nargs="*", type=Path, default=[])
    for file in parser.parse_known_args(arguments)[0].configfile:
        if not file.is_file():
            raise SystemExit(
                f"--configfile {file}: no such file. Correct the path; if it is a target, put it "
                "before --configfile"
            )
