r"""Command line: ``run`` times kernels, ``check`` compares them with float64, ``tune``, ``table``.

To search the kernels for illegal accesses and races, run ``check`` under NVIDIA's compute-sanitizer
(tools memcheck, synccheck; racecheck with ``--dtype fp32``), with each tensor an allocation of its
own::

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --launch-timeout 0 \
        --report-api-errors no --error-exitcode 1 \
        python -m scalefold_kernels.bench check --shape "odd sizes" N=256
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from scalefold_kernels.bench.cases import all_cases
from scalefold_kernels.bench.run import check, read_record, run
from scalefold_kernels.bench.table import markdown_table
from scalefold_kernels.bench.tune import tune

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 1 where a kernel is wrong, 2 where nothing can be measured."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        return _main(given)
    except LookupError as error:
        parser.exit(2, f"error: {error.args[0]}\n")
    except OSError as error:
        parser.exit(2, f"error: {error}\n")


def _main(given: argparse.Namespace) -> int:
    if given.command == "table":
        print(markdown_table([read_record(file) for file in given.record], given.shape))
        return 0
    cases = all_cases(given.op, given.shape, odd=given.command == "check")
    _require_gpu()
    dtype = _DTYPES[given.dtype]
    if given.command == "check":
        return 0 if check(cases, dtype, torch.device("cuda")) else 1
    if given.command == "run":
        return 0 if run(cases, given.out, dtype, compare=given.compare) else 1
    for path in tune(cases, given.folder, dtype):
        print(path)
    return 0


def _require_gpu() -> None:
    """An interpreter runs no benchmark: its times mean nothing, and the tests compare its results.

    Raises
    ------
    LookupError
        torch finds no GPU.
    """
    if not torch.cuda.is_available():
        raise LookupError("kernels are measured on a GPU, and torch finds none")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scalefold_kernels.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("run", "check kernels, then time them beside other implementations"),
        ("check", "compare kernels with float64"),
        ("tune", "find the fastest tiles on this GPU, and write them into the tables"),
    ):
        command = commands.add_parser(name, help=words, description=words)
        command.add_argument("--op", nargs="+", default=[], help="only these ops")
        command.add_argument("--dtype", choices=_DTYPES, default="bf16")
        _add_shape(command)
        if name == "run":
            command.add_argument("-o", "--out", type=Path, default=Path("kernels.json"))
            command.add_argument(
                "--compare",
                action=argparse.BooleanOptionalAction,
                default=True,
                help="also torch.compile, and other implementations that are installed",
            )
        if name == "tune":
            command.add_argument(
                "--folder", type=_folder, help="for the tables; default: where kernels read them"
            )
    table = commands.add_parser("table", help="records of run as one table in Markdown")
    table.add_argument("record", nargs="+", type=Path)
    _add_shape(table)
    return parser


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return Path(text)


def _add_shape(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--shape",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="only cases whose setting or shape holds one of these, such as N=256",
    )


if __name__ == "__main__":
    sys.exit(main())
